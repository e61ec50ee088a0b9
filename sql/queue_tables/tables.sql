-- Read the statistics of the tables that hold queues, one row for each partition: tables of the event broker and of
-- sessions, and the given ones.
-- params: tables
-- rows: (oid, root_oid, name, table_name, is_default, is_ours, live_rows, dead_rows, vacuum_at_rows, is_off,
-- is_running, vacuumed_s, xid_age, xid_limit, xid_end, multixact_age, multixact_limit, multixact_end); table_name is
-- the partitioned table of a partition; is_ours where this role may read it as its owner; vacuum_at_rows is how many
-- dead rows autovacuum waits for; is_off says where it is switched off, null where it is on; a limit is the age at
-- which autovacuum freezes at the latest, an end the age at which VACUUM leaves out all else
-- index: none, the catalog's own
WITH RECURSIVE queue_tables AS (
    SELECT
        relation.oid,
        relation.oid AS root
    FROM pg_class AS relation
    INNER JOIN pg_namespace AS namespace ON relation.relnamespace = namespace.oid
    WHERE
        relation.relkind IN ('r', 'p')
        AND NOT relation.relispartition
        AND (
            namespace.nspname IN ('pgmb', 'queuekeeper')
            OR format('%%I.%%I', namespace.nspname, relation.relname) = any(%(tables)s)
            OR (
                relation.relname IN ('device_publish_msg', 'device_session_ctx')
                AND pg_table_is_visible(relation.oid)
            )
        )
    UNION ALL
    SELECT
        inheritance.inhrelid AS oid,
        above.root
    FROM queue_tables AS above
    INNER JOIN pg_inherits AS inheritance ON above.oid = inheritance.inhparent
)

SELECT
    cast(relation.oid AS bigint) AS oid,
    cast(root.oid AS bigint) AS root_oid,
    format('%%I.%%I', namespace.nspname, relation.relname) AS name,
    format('%%I.%%I', root_namespace.nspname, root.relname) AS table_name,
    default_of.partdefid IS NOT NULL AS is_default,
    pg_has_role(root.relowner, 'USAGE') AS is_ours,
    pg_stat_get_live_tuples(relation.oid) AS live_rows,
    pg_stat_get_dead_tuples(relation.oid) AS dead_rows,
    cast(
        least(
            coalesce(
                cast(options.threshold AS double precision),
                cast(current_setting('autovacuum_vacuum_threshold') AS double precision)
            )
            + coalesce(
                cast(options.scale_factor AS double precision),
                cast(current_setting('autovacuum_vacuum_scale_factor') AS double precision)
            ) * greatest(relation.reltuples, 0),
            -- PostgreSQL has it from 18 on.
            nullif(
                coalesce(
                    cast(options.most AS double precision),
                    cast(current_setting('autovacuum_vacuum_max_threshold', TRUE) AS double precision)
                ),
                -1
            )
        ) AS bigint
    ) AS vacuum_at_rows,
    CASE
        WHEN NOT coalesce(cast(options.enabled AS boolean), TRUE) THEN 'table'
        WHEN 'off' IN (current_setting('autovacuum'), current_setting('track_counts')) THEN 'server'
    END AS is_off,
    relation.oid IN (
        SELECT vacuums.relid FROM pg_stat_progress_vacuum AS vacuums
        WHERE vacuums.datname = current_database()
    ) AS is_running,
    cast(
        extract(
            EPOCH FROM clock_timestamp()
            - greatest(pg_stat_get_last_vacuum_time(relation.oid), pg_stat_get_last_autovacuum_time(relation.oid))
        ) AS double precision
    ) AS vacuumed_s,
    greatest(age(relation.relfrozenxid), age(toast.relfrozenxid)) AS xid_age,
    least(
        cast(options.freeze_max_age AS bigint), cast(current_setting('autovacuum_freeze_max_age') AS bigint)
    ) AS xid_limit,
    cast(current_setting('vacuum_failsafe_age') AS bigint) AS xid_end,
    greatest(mxid_age(relation.relminmxid), mxid_age(toast.relminmxid)) AS multixact_age,
    least(
        cast(options.multixact_freeze_max_age AS bigint),
        cast(current_setting('autovacuum_multixact_freeze_max_age') AS bigint)
    ) AS multixact_limit,
    cast(current_setting('vacuum_multixact_failsafe_age') AS bigint) AS multixact_end
FROM queue_tables
INNER JOIN pg_class AS relation ON queue_tables.oid = relation.oid
INNER JOIN pg_namespace AS namespace ON relation.relnamespace = namespace.oid
INNER JOIN pg_class AS root ON queue_tables.root = root.oid
INNER JOIN pg_namespace AS root_namespace ON root.relnamespace = root_namespace.oid
LEFT JOIN pg_partitioned_table AS default_of ON relation.oid = default_of.partdefid
LEFT JOIN pg_class AS toast ON relation.reltoastrelid = toast.oid
LEFT JOIN LATERAL (
    SELECT
        max(option_value) FILTER (WHERE option_name = 'autovacuum_enabled') AS enabled,
        max(option_value) FILTER (WHERE option_name = 'autovacuum_vacuum_threshold') AS threshold,
        max(option_value) FILTER (WHERE option_name = 'autovacuum_vacuum_scale_factor') AS scale_factor,
        max(option_value) FILTER (WHERE option_name = 'autovacuum_vacuum_max_threshold') AS most,
        max(option_value) FILTER (WHERE option_name = 'autovacuum_freeze_max_age') AS freeze_max_age,
        max(option_value) FILTER (
            WHERE option_name = 'autovacuum_multixact_freeze_max_age'
        ) AS multixact_freeze_max_age
    FROM pg_options_to_table(relation.reloptions)
) AS options ON TRUE
WHERE relation.relkind = 'r' AND relation.relpersistence <> 't'
ORDER BY table_name ASC, name ASC
