-- Take over the subscriptions that have a condition.
-- params: condition
-- rows: none
-- index: none
INSERT INTO pgmb.subscriptions (
    id, group_id, conditions_sql, params, created_at, last_active_at, expiry_interval
)
SELECT
    s.id,
    s.group_id,
    s.conditions_sql,
    s.params,
    CASE
        WHEN s.id ~ '^su[0-9a-f]{22}$' THEN pgmb.extract_date_from_event_id(s.id::text::pgmb.event_id)
        ELSE coalesce(g.created_at, s.last_active_at)
    END AS created_at,
    s.last_active_at,
    s.expiry_interval
FROM pgmb_original.subscriptions AS s
INNER JOIN pgmb_original.subscription_groups AS g ON s.group_id = g.id
WHERE s.conditions_sql = %(condition)s
