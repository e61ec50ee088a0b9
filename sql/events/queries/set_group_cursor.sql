-- Store how far a group has read.
-- params: group_id, cursor, release
-- rows: one, without meaning
-- index: primary key of pgmb.subscription_groups
SELECT pgmb.set_group_cursor(%(group_id)s, %(cursor)s, %(release)s)
