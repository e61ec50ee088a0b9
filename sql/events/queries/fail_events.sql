-- Keep events as dead letters, unless their subscription is gone: then nobody wants them.
-- params: subscription_id, ids, handler, reason, attempts, retry_id
-- rows: how many; none without the subscription
-- index: primary key of pgmb.subscriptions
SELECT
    pgmb.fail_events(
        s.id, %(ids)s::text[], %(handler)s, %(reason)s, %(attempts)s, %(retry_id)s
    ) AS failed
FROM pgmb.subscriptions AS s
WHERE s.id = %(subscription_id)s
