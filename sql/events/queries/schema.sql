-- name: has_schema
-- Tell whether schema pgmb is there, and whether it has the ledger of this event broker.
-- params: none
-- rows: one: (has schema, has ledger)
-- index: none
SELECT
    to_regnamespace('pgmb') IS NOT NULL AS has_schema,
    to_regclass('pgmb.migrations') IS NOT NULL AS has_ledger;

-- name: lock_schema
-- Let one process at a time install or remove the event broker, until the transaction ends.
-- params: key
-- rows: one, without meaning
-- index: none
SELECT pg_advisory_xact_lock(%(key)s::bigint) AS locked;

-- name: applied_migrations
-- Read what was applied to schema pgmb.
-- params: none
-- rows: one per migration, and version 0: (version, name, checksum)
-- index: migrations_pkey
SELECT
    version,
    name,
    checksum
FROM pgmb.migrations
ORDER BY version;

-- name: record_migration
-- Note that a migration was applied to schema pgmb.
-- params: version, name, checksum
-- rows: none
-- index: migrations_pkey
INSERT INTO pgmb.migrations (version, name, checksum)
VALUES (%(version)s, %(name)s, %(checksum)s);

-- name: foreign_triggers
-- Read the commands that take the broker's triggers off tables outside its schema.
-- params: none
-- rows: one per trigger: (command)
-- index: pg_trigger_oid_index
SELECT 'DROP TRIGGER ' || quote_ident(t.tgname) || ' ON ' || t.tgrelid::regclass AS command
FROM pg_trigger AS t
INNER JOIN pg_proc AS p ON t.tgfoid = p.oid
INNER JOIN pg_class AS c ON t.tgrelid = c.oid
WHERE p.pronamespace = to_regnamespace('pgmb') AND c.relnamespace <> p.pronamespace AND NOT t.tgisinternal;

-- name: drop_schema
-- Remove the event broker with all that it keeps.
-- params: none
-- rows: none
-- index: none
DROP SCHEMA pgmb CASCADE;

-- name: dispatch_status
-- Read how dispatching stands.
-- params: none
-- rows: one: (polled at, last dispatch, undispatched events, the oldest of them, scheduled events, overdue ones,
--   events to dispatch again, quarantined subscriptions, retention limit, seconds of head-room, overflow in use)
-- index: events_transaction_id_idx
SELECT
    st.polled_at,
    st.last_dispatch_id,
    st.undispatched,
    st.oldest_undispatched_id,
    st.scheduled,
    st.overdue,
    st.reenqueued,
    st.quarantined_subscriptions,
    st.retention_limit,
    extract(EPOCH FROM st.head_room)::double precision AS head_room_s,
    st.overflow_in_use
FROM pgmb.dispatch_status() AS st;
