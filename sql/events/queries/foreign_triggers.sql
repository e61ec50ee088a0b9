-- Read the commands that take the broker's triggers off tables outside its schema.
-- params: none
-- rows: one per trigger: (command)
-- index: pg_trigger_oid_index
SELECT 'DROP TRIGGER ' || quote_ident(t.tgname) || ' ON ' || t.tgrelid::regclass AS command
FROM pg_trigger AS t
INNER JOIN pg_proc AS p ON t.tgfoid = p.oid
INNER JOIN pg_class AS c ON t.tgrelid = c.oid
WHERE p.pronamespace = to_regnamespace('pgmb') AND c.relnamespace <> p.pronamespace AND NOT t.tgisinternal
