-- Move the cursors of groups of the event broker that have nothing to read below an id to that id.
-- params: upper
-- rows: (advanced)
-- index: subscription_groups_pkey
SELECT pgmb.advance_groups(%(upper)s)
