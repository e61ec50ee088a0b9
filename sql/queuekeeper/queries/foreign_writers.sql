-- name: install_session_trigger
-- Create the trigger by which every change of a row of device_session_ctx checks who owns the session.
-- params: none
-- rows: none
-- index: none
CREATE OR REPLACE TRIGGER queuekeeper_refuse_moved_session BEFORE INSERT OR UPDATE OR DELETE ON device_session_ctx
FOR EACH ROW EXECUTE FUNCTION queuekeeper.refuse_moved_session();

-- name: install_message_trigger
-- Create the trigger by which every change of a row of device_publish_msg checks who owns the session.
-- params: none
-- rows: none
-- index: none
CREATE OR REPLACE TRIGGER queuekeeper_refuse_moved_session BEFORE INSERT OR UPDATE OR DELETE ON device_publish_msg
FOR EACH ROW EXECUTE FUNCTION queuekeeper.refuse_moved_session();

-- name: always_session_trigger
-- Make the trigger of device_session_ctx fire also with session_replication_role = replica.
-- params: none
-- rows: none
-- index: none
ALTER TABLE device_session_ctx ENABLE ALWAYS TRIGGER queuekeeper_refuse_moved_session;

-- name: always_message_trigger
-- Make the trigger of device_publish_msg fire also with session_replication_role = replica.
-- params: none
-- rows: none
-- index: none
ALTER TABLE device_publish_msg ENABLE ALWAYS TRIGGER queuekeeper_refuse_moved_session;

-- name: remove_session_trigger
-- Drop the trigger of device_session_ctx.
-- params: none
-- rows: none
-- index: none
DROP TRIGGER IF EXISTS queuekeeper_refuse_moved_session ON device_session_ctx;

-- name: remove_message_trigger
-- Drop the trigger of device_publish_msg.
-- params: none
-- rows: none
-- index: none
DROP TRIGGER IF EXISTS queuekeeper_refuse_moved_session ON device_publish_msg;

-- name: foreign_writer_triggers
-- Return for both tables of sessions whether their trigger exists and fires, and how many sessions it guards.
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
        WHERE owner <> 'postgres'
    ) AS moved
FROM (VALUES ('device_publish_msg'), ('device_session_ctx')) AS wanted (name)
LEFT JOIN pg_catalog.pg_trigger AS trigger
    ON
        trigger.tgrelid = to_regclass(wanted.name)
        AND trigger.tgname = 'queuekeeper_refuse_moved_session'
ORDER BY wanted.name;
