-- A plan that nobody agreed to when asked is rejected; stopped is a run that has begun.
ALTER TABLE queuekeeper.plans DROP CONSTRAINT plans_state_check;
UPDATE queuekeeper.plans SET state = 'rejected'
WHERE state = 'stopped';
ALTER TABLE queuekeeper.plans
ADD CONSTRAINT plans_state_check CHECK (
    state IN ('planned', 'refused', 'rejected', 'approved', 'copying', 'copied', 'verified', 'failed')
);

-- changes: maintenance_runs
ALTER TABLE queuekeeper.maintenance_runs DROP CONSTRAINT maintenance_runs_state_check;
UPDATE queuekeeper.maintenance_runs AS run SET state = 'rejected'
WHERE
    run.state = 'stopped'
    AND run.approved_by IS NULL
    AND EXISTS (
        SELECT FROM queuekeeper.audit
        WHERE audit.subject = run.maintenance_run_id AND audit.action IN ('reject', 'unanswered')
    );
ALTER TABLE queuekeeper.maintenance_runs
ADD CONSTRAINT maintenance_runs_state_check CHECK (
    state IN ('planned', 'approved', 'rejected', 'running', 'done', 'stopped', 'failed')
);
