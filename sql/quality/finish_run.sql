-- Give a judgement of quality its verdict.
-- params: quality_run_id, verdict
-- rows: none
-- index: quality_runs_pkey
UPDATE queuekeeper.quality_runs
SET
    verdict = %(verdict)s,
    finished_at = clock_timestamp()
WHERE quality_run_id = %(quality_run_id)s
