-- Tell since when a subscription is in quarantine, and why.
-- params: subscription_id
-- rows: one, or none when it is gone
-- index: primary key of pgmb.subscriptions
SELECT
    s.quarantined_at,
    s.quarantine_reason
FROM pgmb.subscriptions AS s
WHERE s.id = %(subscription_id)s
