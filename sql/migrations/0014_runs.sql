-- A migration is paused and slowed down like any other run, whether or not devices are connected.
ALTER TABLE queuekeeper.plans ADD COLUMN paused boolean NOT NULL DEFAULT FALSE;

UPDATE queuekeeper.plans
SET
    paused = control.paused,
    throttle_messages_per_s = coalesce(control.clients_per_s, plans.throttle_messages_per_s)
FROM queuekeeper.online_control AS control
WHERE control.plan_id = plans.plan_id;

CREATE TEMPORARY TABLE online_control_before AS
SELECT
    plan_id,
    held_back,
    canary,
    rehearsed_at
FROM queuekeeper.online_control;

DROP TABLE queuekeeper.online_control;

-- What a migration with devices connected says of itself, and which cohorts go first.
CREATE TABLE queuekeeper.online_control (
    plan_id text NOT NULL,
    held_back text NOT NULL DEFAULT '', -- what slows it down now, in words
    canary int[] NOT NULL DEFAULT '{}', -- cohorts that go first
    rehearsed_at timestamptz, -- when the canary had gone to Redis and back
    CONSTRAINT online_control_pkey PRIMARY KEY (plan_id),
    CONSTRAINT online_control_plan_id_fkey FOREIGN KEY (plan_id)
    REFERENCES queuekeeper.plans (plan_id) ON DELETE CASCADE
);

INSERT INTO queuekeeper.online_control (plan_id, held_back, canary, rehearsed_at)
SELECT
    plan_id,
    held_back,
    canary,
    rehearsed_at
FROM online_control_before;

DROP TABLE online_control_before;

-- Note who agrees to a run, whether it waits and how fast it may work, in the table that the run stands in.
-- Only what is new is written: somebody else may have changed the rest meanwhile.
-- Whoever may not change that table may not steer its runs.
CREATE FUNCTION queuekeeper.steer_run()
RETURNS trigger
LANGUAGE plpgsql
SET search_path = ''
AS $$
DECLARE
    agreed boolean := (NEW.approved_by, NEW.approved_at) IS DISTINCT FROM (OLD.approved_by, OLD.approved_at);
BEGIN
    IF OLD.kind IN ('session_migration', 'online_migration') THEN
        UPDATE queuekeeper.plans
        SET
            state = CASE WHEN plans.state = 'planned' AND NEW.state = 'approved' THEN 'approved' ELSE plans.state END,
            approved_by = CASE WHEN agreed THEN NEW.approved_by ELSE plans.approved_by END,
            approved_at = CASE WHEN agreed THEN NEW.approved_at ELSE plans.approved_at END,
            throttle_messages_per_s = CASE
                WHEN NEW.throttle_operations_per_s IS DISTINCT FROM OLD.throttle_operations_per_s
                    THEN NEW.throttle_operations_per_s
                ELSE plans.throttle_messages_per_s
            END,
            paused = CASE WHEN NEW.paused <> OLD.paused THEN NEW.paused ELSE plans.paused END,
            updated_at = clock_timestamp()
        WHERE plans.plan_id = OLD.maintenance_run_id;
    ELSE
        UPDATE queuekeeper.maintenance_runs
        SET
            state = CASE WHEN maintenance_runs.state = 'planned' AND NEW.state = 'approved' THEN 'approved' ELSE maintenance_runs.state END,
            approved_by = CASE WHEN agreed THEN NEW.approved_by ELSE maintenance_runs.approved_by END,
            approved_at = CASE WHEN agreed THEN NEW.approved_at ELSE maintenance_runs.approved_at END,
            throttle_operations_per_s = CASE
                WHEN NEW.throttle_operations_per_s IS DISTINCT FROM OLD.throttle_operations_per_s
                    THEN NEW.throttle_operations_per_s
                ELSE maintenance_runs.throttle_operations_per_s
            END,
            paused = CASE WHEN NEW.paused <> OLD.paused THEN NEW.paused ELSE maintenance_runs.paused END,
            updated_at = clock_timestamp()
        WHERE maintenance_runs.maintenance_run_id = OLD.maintenance_run_id;
    END IF;
    RETURN NEW;
END;
$$;

-- Runs of every kind, migrations too: what each was asked, where it stands, and what people have said about it.
CREATE VIEW queuekeeper.runs AS
SELECT
    maintenance_run_id,
    kind,
    parameters,
    state,
    '' AS refused, -- why it may not be carried out; empty: it may
    plan,
    report,
    approved_by,
    approved_at,
    throttle_operations_per_s,
    paused,
    created_at,
    updated_at
FROM queuekeeper.maintenance_runs
UNION ALL
SELECT
    plans.plan_id AS maintenance_run_id,
    CASE plans.parameters ->> 'mode' WHEN 'online' THEN 'online_migration' ELSE 'session_migration' END AS kind,
    plans.parameters,
    CASE
        WHEN plans.state = 'refused' THEN 'failed'
        WHEN plans.state IN ('copying', 'copied') THEN 'running'
        WHEN plans.state <> 'verified' THEN plans.state
        WHEN EXISTS (
            SELECT FROM queuekeeper.online_cohorts
            WHERE online_cohorts.plan_id = plans.plan_id AND online_cohorts.state NOT IN ('planned', 'committed')
        ) THEN 'running'
        ELSE 'done'
    END AS state,
    CASE plans.state WHEN 'refused' THEN plans.state_reason ELSE '' END AS refused,
    jsonb_build_object(
        'code_version', plans.code_version, 'as_of_ms', plans.as_of_ms, 'cohorts', cardinality(plans.chosen),
        'state', plans.state, 'state_reason', plans.state_reason
    ) AS plan,
    (
        SELECT jsonb_build_object('html', reports.html_path, 'json', reports.json_path, 'sha256', reports.sha256)
        FROM queuekeeper.reports
        WHERE reports.plan_id = plans.plan_id
        ORDER BY reports.report_id DESC
        LIMIT 1
    ) AS report,
    plans.approved_by,
    plans.approved_at,
    plans.throttle_messages_per_s AS throttle_operations_per_s,
    plans.paused,
    plans.planned_at AS created_at,
    plans.updated_at
FROM queuekeeper.plans;

CREATE TRIGGER steer INSTEAD OF UPDATE ON queuekeeper.runs
FOR EACH ROW EXECUTE FUNCTION queuekeeper.steer_run();

-- How far runs of every kind have come, share by share; of a migration, its copies, verifications and armed cohorts.
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
