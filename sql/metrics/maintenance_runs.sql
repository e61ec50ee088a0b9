-- Count the runs of upkeep by kind and state.
-- params: none
-- rows: (kind, state, runs, paused, last_change_s); last_change_s is an instant in seconds since 1970
-- index: none, a row per run
SELECT
    kind,
    state,
    count(*) AS runs,
    count(*) FILTER (WHERE paused AND state IN ('approved', 'running')) AS paused,
    cast(extract(EPOCH FROM max(updated_at)) AS double precision) AS last_change_s
FROM queuekeeper.maintenance_runs
GROUP BY kind, state
ORDER BY kind, state
