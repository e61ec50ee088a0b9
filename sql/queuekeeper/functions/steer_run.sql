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
