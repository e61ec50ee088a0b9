-- Read what others have added to PGMB's tables and would stay with them: triggers, policies, and what publishes them.
-- params: none
-- rows: one per object: (its description), sorted
-- index: pg_trigger_tgrelid_tgname_index
SELECT pg_describe_object(o.classid, o.objid, 0) AS description
FROM (
    SELECT
        'pg_trigger'::regclass AS classid,
        t.oid AS objid,
        t.tgrelid AS relid
    FROM pg_trigger AS t
    INNER JOIN pg_proc AS p ON t.tgfoid = p.oid
    WHERE NOT t.tgisinternal AND t.tgparentid = 0 AND p.pronamespace <> to_regnamespace('pgmb')
    UNION ALL
    SELECT
        'pg_policy'::regclass AS classid,
        y.oid AS objid,
        y.polrelid AS relid
    FROM pg_policy AS y
    UNION ALL
    SELECT
        'pg_publication_rel'::regclass AS classid,
        r.oid AS objid,
        r.prrelid AS relid
    FROM pg_publication_rel AS r
) AS o
INNER JOIN pg_class AS c ON o.relid = c.oid
WHERE c.relnamespace = to_regnamespace('pgmb')
UNION ALL
SELECT pg_describe_object('pg_publication_namespace'::regclass, n.oid, 0) AS description
FROM pg_publication_namespace AS n
WHERE n.pnnspid = to_regnamespace('pgmb')
ORDER BY description
