-- Read the state of dispatching, for people.
-- params: none
-- rows: one: (undispatched, scheduled, overdue, reenqueued, quarantined_subscriptions, overflow_in_use, subscriptions,
-- dead_letters)
-- index: none; counts of what waits stop at 100,000
SELECT
    status.undispatched,
    status.scheduled,
    status.overdue,
    status.reenqueued,
    status.quarantined_subscriptions,
    coalesce(status.overflow_in_use, FALSE) AS overflow_in_use,
    (SELECT count(*) FROM pgmb.subscriptions) AS subscriptions,
    (SELECT count(*) FROM pgmb.dead_letters) AS dead_letters
FROM pgmb.dispatch_status() AS status
