-- Read what the runs of the copy did, first to last.
-- params: plan_id
-- rows: (report, cohorts)
-- index: copy_reports_plan_id_idx
SELECT
    report,
    cohorts
FROM queuekeeper.copy_reports
WHERE plan_id = %(plan_id)s
ORDER BY report_id
