-- Remove subscriptions.
-- params: ids
-- rows: id of each that there was
-- index: primary key of pgmb.subscriptions
DELETE FROM pgmb.subscriptions
WHERE id = any(%(ids)s)
RETURNING id
