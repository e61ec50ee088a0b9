-- Remove those of some subscriptions of the event broker that have expired and have not come back meanwhile.
-- params: subscription_ids
-- rows: (subscription_id)
-- index: subscriptions_pkey
DELETE FROM pgmb.subscriptions AS subscriptions
WHERE
    subscriptions.id = any(%(subscription_ids)s)
    -- include: expired_subscription
RETURNING cast(subscriptions.id AS text) AS subscription_id
