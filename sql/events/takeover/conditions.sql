-- Read the conditions of PGMB's subscriptions.
-- params: none
-- rows: one per condition: (condition)
-- index: none
SELECT DISTINCT s.conditions_sql
FROM pgmb_original.subscriptions AS s
ORDER BY s.conditions_sql
