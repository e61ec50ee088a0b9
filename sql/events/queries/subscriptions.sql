-- List subscriptions.
-- params: group_id; none for all
-- rows: subscriptions, the oldest first in each group
-- index: none
SELECT
    s.id,
    s.group_id,
    s.conditions_sql,
    s.params,
    s.created_at,
    s.last_active_at,
    extract(EPOCH FROM s.expiry_interval)::double precision AS expires_after_s,
    s.quarantined_at,
    s.quarantine_reason
FROM pgmb.subscriptions AS s
WHERE %(group_id)s::text IS NULL OR s.group_id = %(group_id)s::text
ORDER BY s.group_id, s.id
