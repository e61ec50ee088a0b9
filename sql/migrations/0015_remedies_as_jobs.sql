-- Runs of remedies are kept as those of every job: the choice of queues among the parameters, counts in one record.
-- An undo and the list of runs go on working for them; one that was stopped goes on where it was.
WITH remedies AS (
    SELECT
        run.maintenance_run_id,
        (run.parameters - ARRAY['selection', 'code_version', 'as_of_ms'])
        || coalesce(run.parameters -> 'selection', '{}')
        || jsonb_build_object('max_operations_per_s', run.throttle_operations_per_s) AS parameters,
        jsonb_build_object(
            'code_version', coalesce(run.parameters -> 'code_version', '""'),
            'as_of_ms', coalesce(run.parameters -> 'as_of_ms', '0'),
            'queues', run.plan -> 'queues',
            'examples', run.plan -> 'examples',
            'steps', '[]',
            'seconds', 0
        ) AS plan,
        jsonb_build_object(
            'queues', run.plan -> 'looked_at',
            'treated', (
                SELECT count(*) FROM jsonb_array_elements(run.plan -> 'queues') AS queue (plan)
                WHERE queue.plan -> 'effects' <> '{}'
            ),
            'effects', run.plan -> 'effects',
            'refusals', run.plan -> 'refusals'
        ) AS planned,
        run.report || jsonb_build_object(
            'dry_run', FALSE,
            'counts', jsonb_build_object(
                'queues', run.report -> 'queues',
                'treated', run.report -> 'queues',
                'changed', run.report -> 'changed',
                'not_planned', run.report -> 'not_planned',
                'effects', run.report -> 'done',
                'refusals', run.report -> 'refusals'
            )
        ) AS report
    FROM queuekeeper.maintenance_runs AS run
    WHERE run.plan ?& ARRAY['remedy', 'looked_at'] AND NOT run.plan ? 'steps'
),

carried_progress AS (
    UPDATE queuekeeper.maintenance_progress AS progress
    SET
        counts = jsonb_build_object(
            -- The queue that was begun last counts once it is gone through.
            'queues', greatest(0, progress.scanned - (NOT progress.done)::int),
            'treated', coalesce(progress.counts -> 'queues treated', '0'),
            'effects', (
                SELECT coalesce(jsonb_object_agg(substr(count.name, length('done: ') + 1), count.value), '{}')
                FROM jsonb_each(progress.counts) AS count (name, value)
                WHERE count.name LIKE 'done: %'
            ),
            'in_queue', (
                SELECT
                    coalesce(
                        jsonb_object_agg(substr(count.name, length('in the queue begun last: ') + 1), count.value), '{}'
                    )
                FROM jsonb_each(progress.counts) AS count (name, value)
                WHERE count.name LIKE 'in the queue begun last: %'
            )
        )
    FROM remedies
    WHERE progress.maintenance_run_id = remedies.maintenance_run_id
)

UPDATE queuekeeper.maintenance_runs AS run
SET
    parameters = remedies.parameters,
    plan = remedies.plan || jsonb_build_object(
        'counts', remedies.planned,
        'shares', jsonb_build_array(jsonb_build_object('share', 'queues', 'counts', remedies.planned))
    ),
    report = remedies.report
FROM remedies
WHERE run.maintenance_run_id = remedies.maintenance_run_id;
