-- Read how the cursor of each group of the event broker compares with the stored dispatches.
-- params: none
-- rows: (group_id, subscriptions, behind_retention, unread_h); behind_retention is 1 when dispatches behind its cursor
-- are gone, unread_h the age of its oldest undelivered event; see pgmb.advance_groups
-- index: subscription_groups_pkey, subscription_events_pkey
SELECT
    cast(consumers.id AS text) AS group_id,
    (
        SELECT count(*)
        FROM pgmb.subscriptions AS subscriptions
        WHERE subscriptions.group_id = consumers.id
    ) AS subscriptions,
    cast(consumers.last_read_event_id < kept.lowest_id AS int) AS behind_retention,
    (
        SELECT
            cast(
                extract(EPOCH FROM clock_timestamp() - pgmb.extract_date_from_event_id(pending.event_id)) / 3600
                AS double precision
            )
        FROM pgmb.pending_events(consumers.id, consumers.last_read_event_id, 1) AS pending
    ) AS unread_h
FROM pgmb.subscription_groups AS consumers
CROSS JOIN (
    SELECT min(bounds.lower_bound) AS lowest_id
    FROM pgmb.partition_bounds('pgmb.dispatches') AS bounds
) AS kept
ORDER BY consumers.id
