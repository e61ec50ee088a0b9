-- Read what is in schema pgmb and belongs neither to PGMB nor to an extension: it would go out of reach.
-- params: relations, routines, types; names of PGMB's own
-- rows: one per object: (its description), sorted
-- index: pg_class_relname_nsp_index, pg_proc_proname_args_nsp_index, pg_type_typname_nsp_index
SELECT pg_describe_object(o.classid, o.objid, 0) AS description
FROM (
    SELECT
        'pg_class'::regclass AS classid,
        c.oid AS objid
    FROM pg_class AS c
    WHERE
        c.relnamespace = to_regnamespace('pgmb')
        AND c.relkind NOT IN ('i', 'I', 'c', 't')
        AND NOT c.relispartition
        AND NOT c.relname = any(%(relations)s)
    UNION ALL
    SELECT
        'pg_proc'::regclass AS classid,
        p.oid AS objid
    FROM pg_proc AS p
    WHERE p.pronamespace = to_regnamespace('pgmb') AND NOT p.proname = any(%(routines)s)
    UNION ALL
    SELECT
        'pg_type'::regclass AS classid,
        t.oid AS objid
    FROM pg_type AS t
    LEFT JOIN pg_class AS c ON t.typrelid = c.oid
    WHERE
        t.typnamespace = to_regnamespace('pgmb')
        AND t.typcategory <> 'A'
        AND coalesce(c.relkind, 'c') = 'c'
        AND NOT t.typname = any(%(types)s)
) AS o
WHERE
    NOT EXISTS (
        SELECT FROM pg_depend AS d
        WHERE d.classid = o.classid AND d.objid = o.objid AND d.deptype = 'e'
    )
ORDER BY description
