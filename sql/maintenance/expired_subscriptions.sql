-- List the subscriptions of the event broker that have expired.
-- params: none
-- rows: (subscription_id)
-- index: none, the table is small
SELECT cast(subscriptions.id AS text) AS subscription_id
FROM pgmb.subscriptions AS subscriptions
WHERE
    subscriptions.expiry_interval IS NOT NULL
    -- include: expired_subscription
ORDER BY subscriptions.id
