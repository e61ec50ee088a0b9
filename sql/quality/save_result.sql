-- Keep what became of one expectation.
-- params: quality_run_id, suite, expectation, check_id, severity, status, description, unexpected_count, observed,
-- examples, remedy, remedy_conf
-- rows: none
-- index: quality_results_pkey
INSERT INTO queuekeeper.quality_results (
    quality_run_id, suite, expectation, check_id, severity, status, description, unexpected_count, observed, examples,
    remedy, remedy_conf
)
VALUES (
    %(quality_run_id)s, %(suite)s, %(expectation)s, %(check_id)s, %(severity)s, %(status)s, %(description)s,
    %(unexpected_count)s, %(observed)s, %(examples)s, %(remedy)s, %(remedy_conf)s
)
