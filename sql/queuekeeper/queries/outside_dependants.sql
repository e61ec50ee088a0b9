-- Read what stands outside some schemas and would go with them: views, columns, constraints, functions and others.
-- Only what hangs on the schemas themselves, not what hangs on that in turn. Triggers on tables elsewhere that call
-- functions of the schemas are left out: whoever drops the schemas takes them off. Partitions belong to their table.
-- params: schemas
-- rows: one per object: (its description), sorted
-- index: pg_depend_reference_index
WITH RECURSIVE doomed (classid, objid, objsubid, relation, is_outside) AS (
    SELECT
        'pg_namespace'::regclass::oid,
        n.oid,
        0,
        0::oid,
        FALSE
    FROM pg_namespace AS n
    WHERE n.nspname = any(%(schemas)s)
    UNION
    SELECT
        d.classid,
        d.objid,
        d.objsubid,
        part.relation,
        -- The name that identifies an object is quoted where SQL needs it.
        NOT coalesce(
            cn.nspname = any(%(schemas)s || ARRAY['pg_toast']),
            i.schema = any(array(SELECT quote_ident(own.name) FROM unnest(%(schemas)s) AS own (name))),
            FALSE
        )
        AND NOT coalesce(c.relispartition, FALSE)
    FROM doomed AS up
    INNER JOIN pg_depend AS d
        ON up.classid = d.refclassid AND up.objid = d.refobjid AND up.objsubid IN (0, d.refobjsubid)
    CROSS JOIN
        LATERAL (
            SELECT
            -- The table or view that it is part of; a rule is the body of a view.
                CASE d.classid
                    WHEN 'pg_class'::regclass THEN d.objid
                    WHEN 'pg_rewrite'::regclass
                        THEN (
                            SELECT r.ev_class FROM pg_rewrite AS r
                            WHERE r.oid = d.objid
                        )
                    WHEN 'pg_attrdef'::regclass
                        THEN (
                            SELECT a.adrelid FROM pg_attrdef AS a
                            WHERE a.oid = d.objid
                        )
                    WHEN 'pg_trigger'::regclass
                        THEN (
                            SELECT t.tgrelid FROM pg_trigger AS t
                            WHERE t.oid = d.objid
                        )
                    WHEN 'pg_policy'::regclass
                        THEN (
                            SELECT p.polrelid FROM pg_policy AS p
                            WHERE p.oid = d.objid
                        )
                    WHEN 'pg_statistic_ext'::regclass
                        THEN (
                            SELECT x.stxrelid FROM pg_statistic_ext AS x
                            WHERE x.oid = d.objid
                        )
                    WHEN 'pg_type'::regclass
                        THEN (
                            SELECT coalesce(nullif(y.typrelid, 0), e.typrelid)
                            FROM pg_type AS y
                            LEFT JOIN pg_type AS e ON y.typelem = e.oid
                            WHERE y.oid = d.objid
                        )
                    WHEN 'pg_constraint'::regclass
                        THEN (
                            SELECT n.conrelid FROM pg_constraint AS n
                            WHERE n.oid = d.objid
                        )
                END AS relation
        ) AS part
    LEFT JOIN pg_class AS c ON part.relation = c.oid
    LEFT JOIN pg_namespace AS cn ON c.relnamespace = cn.oid
    CROSS JOIN LATERAL pg_identify_object(d.classid, d.objid, d.objsubid) AS i
    WHERE
        NOT up.is_outside
        -- An extension is named itself.
        AND NOT EXISTS (
            SELECT FROM pg_depend AS member
            WHERE member.classid = d.classid AND member.objid = d.objid AND member.deptype = 'e'
        )
)

SELECT DISTINCT
    CASE
        WHEN dd.classid = 'pg_rewrite'::regclass THEN pg_describe_object('pg_class'::regclass, dd.relation, 0)
        ELSE pg_describe_object(dd.classid, dd.objid, dd.objsubid)
    END COLLATE "C" AS description
FROM doomed AS dd
LEFT JOIN pg_trigger AS t ON dd.classid = 'pg_trigger'::regclass AND dd.objid = t.oid
LEFT JOIN pg_proc AS f ON t.tgfoid = f.oid
LEFT JOIN pg_namespace AS fn ON f.pronamespace = fn.oid
WHERE
    dd.is_outside
    -- What only says who may use, or is sent, what is in the schema.
    AND dd.classid NOT IN (
        'pg_default_acl'::regclass, 'pg_publication_rel'::regclass, 'pg_publication_namespace'::regclass
    )
    AND NOT coalesce(t.tgisinternal OR fn.nspname = any(%(schemas)s), FALSE)
ORDER BY description
