-- Progress of runs of every kind, share by share; for a migration, its copies, verifications and armed cohorts.
-- needs: maintenance_progress, progress, online_cohorts
CREATE VIEW queuekeeper.run_progress AS
SELECT
    maintenance_run_id,
    shard,
    cursor,
    scanned,
    removed,
    repaired,
    freed_bytes,
    counts,
    done,
    updated_at
FROM queuekeeper.maintenance_progress
UNION ALL
SELECT
    plan_id AS maintenance_run_id,
    step || ' ' || part AS shard,
    done || ' of ' || total AS cursor,
    done AS scanned,
    0 AS removed,
    0 AS repaired,
    0 AS freed_bytes,
    '{}'::jsonb AS counts,
    done >= total AS done,
    to_timestamp(updated_at_ms / 1000.0) AS updated_at
FROM queuekeeper.progress
UNION ALL
SELECT
    plan_id AS maintenance_run_id,
    'cohort ' || lpad(cohort::text, 5, '0') AS shard,
    state AS cursor,
    0 AS scanned,
    0 AS removed,
    0 AS repaired,
    0 AS freed_bytes,
    '{}'::jsonb AS counts,
    state = 'committed' AS done,
    step_at AS updated_at
FROM queuekeeper.online_cohorts
WHERE state <> 'planned';
