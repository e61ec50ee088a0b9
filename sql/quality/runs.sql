-- name: save_run
-- Begin a quality run, or begin it again.
-- params: quality_run_id, mode, suites, profile_ids, started_at
-- rows: none
-- index: quality_runs_pkey
INSERT INTO queuekeeper.quality_runs (quality_run_id, mode, suites, profile_ids, started_at)
VALUES (%(quality_run_id)s, %(mode)s, %(suites)s, %(profile_ids)s, %(started_at)s)
ON CONFLICT (quality_run_id) DO UPDATE
    SET
        mode = excluded.mode,
        suites = excluded.suites,
        profile_ids = excluded.profile_ids,
        verdict = 'running',
        numbers = '{}',
        started_at = excluded.started_at,
        finished_at = NULL;

-- name: load_run
-- Read a quality run.
-- params: quality_run_id
-- rows: at most one: (quality_run_id, mode, suites, profile_ids, verdict, numbers, started_at, finished_at)
-- index: quality_runs_pkey
SELECT
    quality_run_id,
    -- include: quality_run_columns
    finished_at
FROM queuekeeper.quality_runs
WHERE quality_run_id = %(quality_run_id)s;

-- name: finish_run
-- Store the verdict of a quality run.
-- params: quality_run_id, verdict
-- rows: none
-- index: quality_runs_pkey
UPDATE queuekeeper.quality_runs
SET
    verdict = %(verdict)s,
    finished_at = clock_timestamp()
WHERE quality_run_id = %(quality_run_id)s;

-- name: save_numbers
-- Store totals of a quality run, which its suites may read.
-- params: quality_run_id, numbers
-- rows: none
-- index: quality_runs_pkey
UPDATE queuekeeper.quality_runs
SET numbers = numbers || %(numbers)s::jsonb
WHERE quality_run_id = %(quality_run_id)s;

-- name: save_result
-- Store the result of one expectation.
-- params: quality_run_id, suite, expectation, check_id, severity, status, description, unexpected_count, observed,
-- examples, remedy, remedy_conf, place
-- rows: none
-- index: quality_results_pkey
INSERT INTO queuekeeper.quality_results (
    quality_run_id, suite, expectation, check_id, severity, status, description, unexpected_count, observed, examples,
    remedy, remedy_conf, place
)
VALUES (
    %(quality_run_id)s, %(suite)s, %(expectation)s, %(check_id)s, %(severity)s, %(status)s, %(description)s,
    %(unexpected_count)s, %(observed)s, %(examples)s, %(remedy)s, %(remedy_conf)s, %(place)s
);

-- name: results
-- Read the results of a quality run, suite by suite.
-- params: quality_run_id
-- rows: (check_id, severity, description, status, suite, expectation, unexpected_count, observed, examples, remedy,
-- remedy_conf, place)
-- index: quality_results_pkey
SELECT
    check_id,
    severity,
    description,
    status,
    suite,
    expectation,
    unexpected_count,
    observed,
    examples,
    remedy,
    remedy_conf,
    place
FROM queuekeeper.quality_results
WHERE quality_run_id = %(quality_run_id)s
ORDER BY suite, expectation;

-- name: delete_results
-- Delete the results of a quality run before it is made again.
-- params: quality_run_id
-- rows: none
-- index: quality_results_pkey
DELETE FROM queuekeeper.quality_results
WHERE quality_run_id = %(quality_run_id)s;
