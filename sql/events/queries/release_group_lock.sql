-- Give a group up.
-- params: group_id
-- rows: one, without meaning
-- index: none
SELECT pgmb.release_group_lock(%(group_id)s)
