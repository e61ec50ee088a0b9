-- Runs of every kind, migrations too: parameters, state, approval, pause and throttle.
-- needs: maintenance_runs, plans, online_cohorts, reports, steer_run
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
    updated_at,
    'maintenance_runs' AS kept_in
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
    plans.updated_at,
    'plans' AS kept_in
FROM queuekeeper.plans;

CREATE TRIGGER steer INSTEAD OF UPDATE ON queuekeeper.runs
FOR EACH ROW EXECUTE FUNCTION queuekeeper.steer_run();
