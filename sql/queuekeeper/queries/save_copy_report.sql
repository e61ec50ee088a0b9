-- Keep what one run of the copy did.
-- params: plan_id, cohorts, report
-- rows: none
-- index: none
INSERT INTO queuekeeper.copy_reports (plan_id, cohorts, report)
VALUES (%(plan_id)s, %(cohorts)s, %(report)s)
