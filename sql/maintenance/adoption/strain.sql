-- Tell what makes a copy wait: standbys that lag, sessions that wait for locks, and how much the copy takes.
-- params: copies
-- rows: one: (lag_s, waiting, bytes); the lag is null where no standby is connected, or the role may not see it
-- index: none, the server's own views
SELECT
    (SELECT extract(EPOCH FROM max(replay_lag))::float8 FROM pg_stat_replication) AS lag_s,
    (
        SELECT count(DISTINCT waiting.pid)
        FROM pg_locks AS waiting
        INNER JOIN pg_stat_activity AS activity ON waiting.pid = activity.pid
        WHERE NOT waiting.granted AND activity.datname = current_database()
    ) AS waiting,
    (
        SELECT coalesce(sum(pg_total_relation_size(coalesce(each.relid, to_regclass(named.name)))), 0)::bigint
        FROM unnest(%(copies)b::text[]) AS named (name)
        LEFT JOIN LATERAL pg_partition_tree(to_regclass(named.name)) AS each ON TRUE
    ) AS bytes
