-- List the conditions that a poll evaluates.
-- params: none
-- rows: each text once
-- index: none
SELECT DISTINCT s.conditions_sql
FROM pgmb.subscriptions AS s
WHERE s.quarantined_at IS NULL
ORDER BY s.conditions_sql
