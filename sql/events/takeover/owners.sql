-- Read what a takeover must change and the caller may not: the schema, tables in it, and tables elsewhere that PGMB
-- watches.
-- params: none
-- rows: one per object: (its description, its owner), sorted
-- index: pg_class_relname_nsp_index, pg_trigger_tgconstraint_index
SELECT
    o.description,
    pg_get_userbyid(o.owner) AS owner
FROM (
    SELECT
        'schema pgmb' AS description,
        n.nspowner AS owner
    FROM pg_namespace AS n
    WHERE n.oid = to_regnamespace('pgmb')
    UNION ALL
    SELECT
        'table pgmb.' || c.relname AS description,
        c.relowner AS owner
    FROM pg_class AS c
    WHERE c.relnamespace = to_regnamespace('pgmb') AND c.relkind IN ('r', 'p')
    UNION ALL
    SELECT
        'table ' || t.tgrelid::regclass AS description,
        c.relowner AS owner
    FROM pg_trigger AS t
    INNER JOIN pg_proc AS p ON t.tgfoid = p.oid
    INNER JOIN pg_class AS c ON t.tgrelid = c.oid
    WHERE p.pronamespace = to_regnamespace('pgmb') AND c.relnamespace <> p.pronamespace AND NOT t.tgisinternal
) AS o
WHERE NOT pg_has_role(o.owner, 'USAGE')
ORDER BY o.description
