-- Record approval or rejection, pause and throttle of a run, in the table that holds the run.
-- Only changed values are written, since others may have changed the rest meanwhile.
-- A role without the right to change that table cannot steer its runs.
CREATE FUNCTION queuekeeper.steer_run()
RETURNS trigger
LANGUAGE plpgsql
SET search_path = ''
AS $$
DECLARE
    -- Of a type, so that the statement knows their columns.
    was queuekeeper.runs := OLD;
    wanted queuekeeper.runs := NEW;
    names text[] := CASE OLD.kept_in
        WHEN 'plans' THEN ARRAY['plans', 'plan_id', 'throttle_messages_per_s']
        ELSE ARRAY['maintenance_runs', 'maintenance_run_id', 'throttle_operations_per_s']
    END;
BEGIN
    EXECUTE format(
        $update$
            UPDATE queuekeeper.%1$I AS run
            SET
                state = CASE
                    WHEN $2.state = $1.state THEN run.state
                    WHEN run.state IN ('planned', 'rejected', 'stopped') AND $2.state = 'approved' THEN 'approved'
                    WHEN run.state = 'planned' AND $2.state = 'rejected' THEN 'rejected'
                    ELSE run.state
                END,
                approved_by = CASE WHEN change.agreed THEN $2.approved_by ELSE run.approved_by END,
                approved_at = CASE WHEN change.agreed THEN $2.approved_at ELSE run.approved_at END,
                %3$I = CASE WHEN change.throttled THEN $2.throttle_operations_per_s ELSE run.%3$I END,
                paused = CASE WHEN $2.paused <> $1.paused THEN $2.paused ELSE run.paused END,
                updated_at = clock_timestamp()
            FROM (
                SELECT
                    ($2.approved_by, $2.approved_at) IS DISTINCT FROM ($1.approved_by, $1.approved_at) AS agreed,
                    $2.throttle_operations_per_s IS DISTINCT FROM $1.throttle_operations_per_s AS throttled
            ) AS change
            WHERE run.%2$I = $1.maintenance_run_id
        $update$,
        VARIADIC names
    )
    USING was, wanted;
    RETURN NEW;
END;
$$;
