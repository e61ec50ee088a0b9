-- Describe a table; its key, owner and DEFAULT partition come from the catalog.
-- params: table
-- rows: at most one: (oid, name, schema_name, relation_name, owner, may_alter, strategy, key_columns, key_column,
-- key_type, default_oid)
-- index: none, the catalog's own
SELECT
    -- include: relation_columns
    pg_has_role(relation.relowner, 'USAGE') AS may_alter,
    partitioned.partstrat::text AS strategy,
    partitioned.partnatts::int AS key_columns,
    attribute.attname::text AS key_column,
    -- include: key_type
    nullif(partitioned.partdefid::bigint, 0) AS default_oid
FROM pg_class AS relation
INNER JOIN pg_namespace AS namespace ON relation.relnamespace = namespace.oid
LEFT JOIN pg_partitioned_table AS partitioned ON relation.oid = partitioned.partrelid
LEFT JOIN pg_attribute AS attribute
    ON relation.oid = attribute.attrelid AND partitioned.partattrs[0] = attribute.attnum
LEFT JOIN pg_type AS key_type ON attribute.atttypid = key_type.oid
WHERE relation.oid = to_regclass(%(table)s)
