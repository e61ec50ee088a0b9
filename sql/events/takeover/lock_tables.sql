-- Keep everybody else out of PGMB's tables until the end of the transaction.
-- params: none
-- rows: none
-- index: none
LOCK TABLE
pgmb.config, pgmb.events, pgmb.unread_events, pgmb.subscription_groups, pgmb.subscriptions, pgmb.subscription_events
IN ACCESS EXCLUSIVE MODE
