-- Evaluate a condition no more, for any of its subscriptions.
-- params: condition, reason
-- rows: id of each subscription that was not in quarantine
-- index: none
SELECT s.id
FROM pgmb.subscriptions AS s
WHERE s.conditions_sql = %(condition)s AND pgmb.quarantine_subscription(s.id, %(reason)s)
