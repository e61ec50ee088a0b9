-- Read the state of the server's replication slots.
-- params: none
-- rows: (slot, is_active, is_lost, kept_gib); kept_gib of write-ahead log that only this slot's reader still needs
-- index: none, the catalog's own
SELECT
    cast(slots.slot_name AS text) AS slot,
    cast(slots.active AS int) AS is_active,
    cast(coalesce(slots.wal_status IN ('unreserved', 'lost'), FALSE) AS int) AS is_lost,
    cast(
        pg_wal_lsn_diff(
            CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END,
            slots.restart_lsn
        ) / 1073741824.0 AS double precision
    ) AS kept_gib
FROM pg_replication_slots AS slots
WHERE NOT slots.temporary
ORDER BY slots.slot_name
