-- Forget what a judgement of quality found, before it is made again.
-- params: quality_run_id
-- rows: none
-- index: quality_results_pkey
DELETE FROM queuekeeper.quality_results
WHERE quality_run_id = %(quality_run_id)s
