-- List the sessions that hold locks on relations, oldest transaction first.
-- params: oids
-- rows: (pid, relation, mode, state, application, query_age_s, transaction_age_s)
-- index: none, the server's own views
SELECT
    held.pid,
    held.relation::regclass::text AS relation,
    held.mode,
    coalesce(activity.state, 'prepared transaction') AS state,
    coalesce(activity.application_name, '') AS application,
    coalesce(extract(EPOCH FROM clock_timestamp() - activity.query_start), 0)::float8 AS query_age_s,
    coalesce(extract(EPOCH FROM clock_timestamp() - activity.xact_start), 0)::float8 AS transaction_age_s
FROM pg_locks AS held
INNER JOIN pg_database AS own ON own.datname = current_database()
LEFT JOIN pg_stat_activity AS activity ON held.pid = activity.pid
WHERE
    held.locktype = 'relation'
    AND held.granted
    AND held.database = own.oid
    AND held.relation = any(%(oids)b::oid[])
    AND held.pid IS DISTINCT FROM pg_backend_pid()
ORDER BY transaction_age_s DESC, held.pid ASC, relation ASC, held.mode ASC
