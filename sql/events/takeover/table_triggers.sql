-- Read PGMB's triggers on tables elsewhere, with the commands that let ours take their places. Those of partitions come
-- and go with their table's.
-- params: none
-- rows: one per trigger: (command that drops it, command that creates ours, command that sets when it fires)
-- index: pg_trigger_oid_index
SELECT
    format('DROP TRIGGER %I ON %s', t.tgname, t.tgrelid::regclass) AS drop_it,
    replace(pg_get_triggerdef(t.oid), 'pgmb_original.push_table_event()', 'pgmb.push_table_event()') AS make_it,
    format(
        'ALTER TABLE %s %s TRIGGER %I',
        t.tgrelid::regclass,
        CASE t.tgenabled
            WHEN 'D' THEN 'DISABLE' WHEN 'R' THEN 'ENABLE REPLICA' WHEN 'A' THEN 'ENABLE ALWAYS' ELSE 'ENABLE'
        END,
        t.tgname
    ) AS set_it
FROM pg_trigger AS t
INNER JOIN pg_proc AS p ON t.tgfoid = p.oid
INNER JOIN pg_class AS c ON t.tgrelid = c.oid
WHERE
    p.pronamespace = to_regnamespace('pgmb_original')
    AND p.proname = 'push_table_event'
    AND c.relnamespace <> p.pronamespace
    AND NOT t.tgisinternal
    AND t.tgparentid = 0
