-- List the subscriptions of the event broker that pgmb.expire_subscriptions would remove now.
-- params: none
-- rows: (subscription_id)
-- index: none, the table is small
SELECT cast(subscriptions.id AS text) AS subscription_id
FROM pgmb.subscriptions AS subscriptions
WHERE
    subscriptions.expiry_interval IS NOT NULL
    AND pgmb.add_interval_imm(subscriptions.last_active_at, subscriptions.expiry_interval) < now()
ORDER BY subscriptions.id
