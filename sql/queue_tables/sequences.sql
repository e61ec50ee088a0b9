-- Read how far sequences that number rows of tables have come: identity columns, serial ones, and defaults.
-- params: oids
-- rows: (name, table_name, column_name, column_type, first, last, final, may_read, role); one row for each sequence;
-- last is null where it was never used or this role may not read it; final is the lower of the sequence's end and the
-- column's; names as SQL writes them
-- index: none, the catalog's own
SELECT DISTINCT ON (sequence.oid)
    format('%%I.%%I', sequence_namespace.nspname, sequence.relname) AS name,
    format('%%I.%%I', namespace.nspname, relation.relname) AS table_name,
    quote_ident(attribute.attname) AS column_name,
    format_type(attribute.atttypid, NULL) AS column_type,
    counted.seqmin AS first,
    CASE WHEN rights.may_read THEN pg_sequence_last_value(sequence.oid) END AS last,
    least(
        counted.seqmax,
        CASE attribute.atttypid
            WHEN cast('smallint' AS regtype) THEN 32767
            WHEN cast('integer' AS regtype) THEN 2147483647
            ELSE 9223372036854775807
        END
    ) AS final,
    rights.may_read,
    quote_ident(current_user) AS role
FROM (
    -- Identity and serial columns own their sequence.
    SELECT
        owned.objid AS sequence_oid,
        owned.refobjid AS table_oid,
        owned.refobjsubid AS column_number
    FROM pg_depend AS owned
    WHERE
        owned.classid = cast('pg_class' AS regclass)
        AND owned.refclassid = cast('pg_class' AS regclass)
        AND owned.deptype IN ('a', 'i')
        AND owned.refobjsubid > 0
    UNION ALL
    SELECT
        used.refobjid AS sequence_oid,
        defaults.adrelid AS table_oid,
        defaults.adnum AS column_number
    FROM pg_attrdef AS defaults
    INNER JOIN pg_depend AS used
        ON
            defaults.oid = used.objid
            AND used.classid = cast('pg_attrdef' AS regclass)
            AND used.refclassid = cast('pg_class' AS regclass)
) AS numbered
INNER JOIN pg_sequence AS counted ON numbered.sequence_oid = counted.seqrelid
INNER JOIN pg_class AS sequence ON counted.seqrelid = sequence.oid
INNER JOIN pg_namespace AS sequence_namespace ON sequence.relnamespace = sequence_namespace.oid
INNER JOIN pg_class AS relation ON numbered.table_oid = relation.oid
INNER JOIN pg_namespace AS namespace ON relation.relnamespace = namespace.oid
INNER JOIN pg_attribute AS attribute
    ON numbered.table_oid = attribute.attrelid AND numbered.column_number = attribute.attnum
CROSS JOIN LATERAL (SELECT has_sequence_privilege(sequence.oid, 'SELECT, USAGE') AS may_read) AS rights
WHERE
    numbered.table_oid = any(%(oids)b::oid[])
    AND NOT counted.seqcycle
    AND counted.seqincrement > 0
    AND (sequence.relpersistence = 'p' OR NOT pg_is_in_recovery())
ORDER BY sequence.oid ASC, relation.relispartition ASC, relation.oid ASC
