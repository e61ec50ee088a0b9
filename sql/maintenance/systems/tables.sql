-- List tables that have a name as other queue systems give to theirs; partitions are left out. It waits for no lock.
-- params: names, schema_name
-- rows: (oid, name, schema_name, relation_name, owner, may_alter, form, columns)
-- index: none, the catalog's own
SELECT
    -- include: relation_columns
    pg_has_role(relation.relowner, 'USAGE') AS may_alter,
    CASE
        WHEN partitioned.partrelid IS NULL THEN 'plain'
        ELSE
            CASE partitioned.partstrat WHEN 'r' THEN 'range' WHEN 'l' THEN 'list' ELSE 'hash' END
            || ' of ' || coalesce(key.attname, 'an expression')
    END AS form,
    (
        SELECT
            coalesce(
                jsonb_object_agg(
                    attribute.attname,
                    CASE type.typtype WHEN 'e' THEN 'enum' ELSE format_type(type.oid, NULL) END
                ),
                '{}'
            )
        FROM pg_attribute AS attribute
        INNER JOIN pg_type AS type ON attribute.atttypid = type.oid
        WHERE attribute.attrelid = relation.oid AND attribute.attnum > 0 AND NOT attribute.attisdropped
    ) AS columns
FROM pg_class AS relation
INNER JOIN pg_namespace AS namespace ON relation.relnamespace = namespace.oid
LEFT JOIN pg_partitioned_table AS partitioned ON relation.oid = partitioned.partrelid
LEFT JOIN pg_attribute AS key
    ON relation.oid = key.attrelid AND partitioned.partnatts = 1 AND partitioned.partattrs[0] = key.attnum
WHERE
    relation.relkind IN ('r', 'p')
    AND NOT relation.relispartition
    AND relation.relpersistence != 't'
    AND namespace.nspname != 'information_schema'
    AND starts_with(namespace.nspname, 'pg_') IS FALSE
    AND namespace.nspname = coalesce(%(schema_name)s, namespace.nspname)
    AND relation.relname ~ %(names)s
ORDER BY namespace.nspname, relation.relname
