-- Read how each expectation came out in some judgements of quality.
-- params: quality_run_ids
-- rows: (quality_run_id, check_id, severity, status, unexpected_count)
-- index: quality_results_pkey
SELECT
    quality_run_id,
    check_id,
    severity,
    status,
    unexpected_count
FROM queuekeeper.quality_results
WHERE quality_run_id = any(%(quality_run_ids)s)
