-- Note that subscriptions are in use.
-- params: ids
-- rows: id of each that there is
-- index: primary key of pgmb.subscriptions
UPDATE pgmb.subscriptions SET last_active_at = now()
WHERE id = any(%(ids)s)
RETURNING id
