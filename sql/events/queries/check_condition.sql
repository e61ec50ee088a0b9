-- Try a condition on the latest events.
-- params: condition
-- rows: what speaks against it, or none
-- index: none
SELECT c.failure
FROM pgmb.check_condition(%(condition)s) AS c
