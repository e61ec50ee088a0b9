-- Tell for both tables of sessions whether their trigger is there and fires, and how many sessions it guards.
-- params: none
-- rows: one per table: (table, whether the trigger is there, whether it always fires, sessions that are Redis's)
-- index: none; reads the owners
SELECT
    wanted.name,
    trigger.oid IS NOT NULL AS installed,
    coalesce(trigger.tgenabled = 'A', FALSE) AS enabled,
    (
        SELECT count(*)
        FROM queuekeeper.session_owners
        WHERE owner = 'redis'
    ) AS moved
FROM (VALUES ('device_publish_msg'), ('device_session_ctx')) AS wanted (name)
LEFT JOIN pg_catalog.pg_trigger AS trigger
    ON
        trigger.tgrelid = to_regclass(wanted.name)
        AND trigger.tgname = 'queuekeeper_refuse_moved_session'
ORDER BY wanted.name
