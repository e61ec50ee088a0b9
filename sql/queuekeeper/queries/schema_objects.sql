-- Read which tables, views and functions are there, and the comment that tells which file made each of the latter two.
-- params: none
-- rows: (name, comment or null)
-- index: none
SELECT
    relation.relname AS name,
    obj_description(relation.oid, 'pg_class') AS comment
FROM pg_class AS relation
WHERE relation.relnamespace = to_regnamespace('queuekeeper') AND relation.relkind IN ('r', 'p', 'v')
UNION ALL
SELECT
    routine.proname AS name,
    obj_description(routine.oid, 'pg_proc') AS comment
FROM pg_proc AS routine
WHERE routine.pronamespace = to_regnamespace('queuekeeper')
