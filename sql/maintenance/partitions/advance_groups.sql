-- Let the groups of the event broker that have nothing to read below an id go on from there.
-- params: upper
-- rows: (advanced)
-- index: subscription_groups_pkey
SELECT pgmb.advance_groups(%(upper)s)
