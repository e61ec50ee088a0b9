-- Take a subscription out of quarantine and dispatch what it has missed.
-- params: subscription_id
-- rows: how many events it gets, and ids of those on which its condition fails
-- index: none
SELECT
    r.redelivered,
    r.failed_event_ids::text[] AS failed_event_ids
FROM pgmb.release_subscription(%(subscription_id)s) AS r
