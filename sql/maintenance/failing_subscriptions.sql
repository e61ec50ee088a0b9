-- List the subscriptions of some conditions that are evaluated, that is, not in quarantine.
-- params: condition_keys
-- rows: (subscription_id, condition_key)
-- index: subscriptions_condition_key_idx
SELECT
    cast(subscriptions.id AS text) AS subscription_id,
    cast(subscriptions.condition_key AS text) AS condition_key
FROM pgmb.subscriptions AS subscriptions
WHERE subscriptions.condition_key = any(%(condition_keys)s) AND subscriptions.quarantined_at IS NULL
ORDER BY subscriptions.id
