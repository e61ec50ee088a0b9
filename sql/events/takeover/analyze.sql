-- Let the planner know what the new tables hold.
-- params: none
-- rows: none
-- index: none
ANALYZE pgmb.events, pgmb.dispatches, pgmb.subscription_events, pgmb.subscriptions, pgmb.scheduled_events
