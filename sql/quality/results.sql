-- Read what a judgement of quality found, suite by suite.
-- params: quality_run_id
-- rows: (suite, expectation, check_id, severity, status, description, unexpected_count, observed, examples, remedy,
-- remedy_conf)
-- index: quality_results_pkey
SELECT
    suite,
    expectation,
    check_id,
    severity,
    status,
    description,
    unexpected_count,
    observed,
    examples,
    remedy,
    remedy_conf
FROM queuekeeper.quality_results
WHERE quality_run_id = %(quality_run_id)s
ORDER BY suite, expectation
