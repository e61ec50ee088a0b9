-- Deliver dead letters again.
-- params: ids, subscription_id; no subscription for their own
-- rows: how many
-- index: primary key of pgmb.dead_letters
SELECT pgmb.replay_dead_letters(%(ids)s::bigint[], %(subscription_id)s) AS replayed
