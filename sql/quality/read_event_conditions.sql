-- Read the distinct conditions of subscriptions to events.
-- params: none
-- rows: (condition_key, condition, subscriptions, quarantined)
-- index: none, a pass over the subscriptions
SELECT
    cast(subscriptions.condition_key AS text) AS condition_key,
    min(subscriptions.conditions_sql) AS condition,
    count(*) AS subscriptions,
    count(subscriptions.quarantined_at) AS quarantined
FROM pgmb.subscriptions AS subscriptions
GROUP BY subscriptions.condition_key
ORDER BY subscriptions.condition_key
