-- List who holds back VACUUM in this database, the oldest first: sessions, prepared transactions, replication slots.
-- params: none
-- rows: (kind, name, who, held_s, age, is_active); name is a process id, the id of a prepared transaction, or a slot;
-- held_s is null where the server does not tell it; age in transactions
-- index: none, the server's own views
SELECT
    holders.kind,
    holders.name,
    holders.who,
    holders.held_s,
    holders.age,
    holders.is_active
FROM (
    SELECT
        CASE
            WHEN activity.backend_type = 'walsender' THEN 'standby feedback'
            WHEN activity.state IS NULL THEN 'session'
            WHEN starts_with(activity.state, 'idle in transaction') THEN 'idle in transaction'
            -- Whether the running statement has taken most of the transaction's time.
            WHEN activity.query_start - activity.xact_start < clock_timestamp() - activity.query_start THEN 'long query'
            ELSE 'open transaction'
        END AS kind,
        cast(activity.pid AS text) AS name,
        concat_ws(', ', activity.usename, nullif(activity.application_name, ''), activity.client_addr) AS who,
        cast(extract(EPOCH FROM clock_timestamp() - activity.xact_start) AS double precision) AS held_s,
        greatest(age(activity.backend_xid), age(activity.backend_xmin)) AS age,
        TRUE AS is_active
    FROM pg_stat_activity AS activity
    WHERE
        activity.pid <> pg_backend_pid()
        AND (activity.backend_xid IS NOT NULL OR activity.backend_xmin IS NOT NULL)
        AND (activity.datname = current_database() OR activity.backend_type = 'walsender')
        AND activity.leader_pid IS NULL
        -- VACUUM does not hold back others.
        AND activity.backend_type IS DISTINCT FROM 'autovacuum worker'
        AND NOT EXISTS (
            SELECT FROM pg_stat_progress_vacuum AS vacuums
            WHERE vacuums.pid = activity.pid
        )
    UNION ALL
    SELECT
        'prepared transaction' AS kind,
        prepared.gid AS name,
        cast(prepared.owner AS text) AS who,
        cast(extract(EPOCH FROM clock_timestamp() - prepared.prepared) AS double precision) AS held_s,
        age(prepared.transaction) AS age,
        TRUE AS is_active
    FROM pg_prepared_xacts AS prepared
    WHERE prepared.database = current_database()
    UNION ALL
    SELECT
        CASE
            WHEN slots.slot_type = 'logical' THEN 'logical replication slot'
            WHEN slots.active THEN 'standby feedback'
            ELSE 'physical replication slot'
        END AS kind,
        cast(slots.slot_name AS text) AS name,
        concat_ws(', ', slots.plugin, slots.database) AS who,
        -- PostgreSQL tells it from 17 on.
        cast(
            extract(EPOCH FROM clock_timestamp() - cast(to_jsonb(slots) ->> 'inactive_since' AS timestamptz))
            AS double precision
        ) AS held_s,
        greatest(age(slots.xmin), age(slots.catalog_xmin)) AS age,
        slots.active AS is_active
    FROM pg_replication_slots AS slots
    WHERE slots.xmin IS NOT NULL OR slots.catalog_xmin IS NOT NULL
) AS holders
ORDER BY holders.age DESC, holders.held_s DESC NULLS LAST
