-- Read the sessions at work for PGMB: those that own a group or poll, and those whose last statement polled, read,
-- moved a cursor or maintained partitions, as its client does every second. The server may hide what others run.
-- params: none
-- rows: one per session: (pid, application, user, what it does), by pid
-- index: none
SELECT
    a.pid,
    coalesce(nullif(a.application_name, ''), 'no name') AS application,
    a.usename,
    CASE WHEN l.pid IS NULL THEN 'polls or reads' ELSE 'holds a lock of a group' END AS work
FROM pg_stat_activity AS a
LEFT JOIN (
    SELECT DISTINCT held.pid
    FROM pg_locks AS held
    INNER JOIN pg_database AS d ON held.database = d.oid
    WHERE
        d.datname = current_database()
        AND held.locktype = 'advisory'
        AND held.objsubid = 1
        AND ((held.classid::bigint << 32) | held.objid::bigint) IN (
            SELECT hashtext('pgmb.read_next_events.' || g.id)::bigint FROM pgmb.subscription_groups AS g
            UNION ALL
            SELECT hashtext('pgmb.poll_for_events')::bigint
        )
) AS l ON a.pid = l.pid
WHERE
    a.datname = current_database()
    AND a.pid <> pg_backend_pid()
    AND (
        l.pid IS NOT NULL
        OR a.query ~* '(poll_for_events|read_next_events|set_group_cursor|maintain_events_table)'
    )
ORDER BY a.pid
