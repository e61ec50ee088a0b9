-- name: assert_group
-- Make sure that a group exists. A new one reads what is dispatched from now on.
-- params: group_id
-- rows: none
-- index: primary key of pgmb.subscription_groups
INSERT INTO pgmb.subscription_groups (id)
VALUES (%(group_id)s)
ON CONFLICT DO NOTHING;

-- name: has_group
-- Tell whether there is a group.
-- params: group_id
-- rows: one
-- index: primary key of pgmb.subscription_groups
SELECT exists(
    SELECT 1
    FROM pgmb.subscription_groups AS g
    WHERE g.id = %(group_id)s
) AS has_group;

-- name: assert_subscription
-- Make sure that a subscription exists, and lives as long as any of its users want.
-- params: group_id, condition, params, expires_after
-- rows: id and creation
-- index: unique identity of pgmb.subscriptions
INSERT INTO pgmb.subscriptions AS s (group_id, conditions_sql, params, expiry_interval)
VALUES (%(group_id)s, %(condition)s, %(params)s::jsonb, %(expires_after)s::interval)
ON CONFLICT (identity) DO UPDATE
    SET
        expiry_interval = CASE
            WHEN excluded.expiry_interval IS NULL OR s.expiry_interval IS NULL THEN NULL
            ELSE greatest(s.expiry_interval, excluded.expiry_interval)
        END,
        last_active_at = now()
RETURNING id, created_at;

-- name: mark_subscriptions_active
-- Note that subscriptions are in use.
-- params: ids
-- rows: id of each that there is
-- index: primary key of pgmb.subscriptions
UPDATE pgmb.subscriptions SET last_active_at = now()
WHERE id = any(%(ids)s)
RETURNING id;

-- name: delete_subscriptions
-- Remove subscriptions.
-- params: ids
-- rows: id of each that there was
-- index: primary key of pgmb.subscriptions
DELETE FROM pgmb.subscriptions
WHERE id = any(%(ids)s)
RETURNING id;

-- name: subscriptions
-- List subscriptions.
-- params: group_id; none for all
-- rows: subscriptions, the oldest first in each group
-- index: none
SELECT
    s.id AS subscription_id,
    s.group_id,
    s.conditions_sql AS condition,
    s.params,
    s.created_at,
    s.last_active_at,
    extract(EPOCH FROM s.expiry_interval)::double precision AS expires_after_s,
    s.quarantined_at,
    s.quarantine_reason
FROM pgmb.subscriptions AS s
WHERE %(group_id)s::text IS NULL OR s.group_id = %(group_id)s::text
ORDER BY s.group_id, s.id;

-- name: subscription_quarantine
-- Tell since when a subscription is in quarantine, and why.
-- params: subscription_id
-- rows: one, or none when it is gone
-- index: primary key of pgmb.subscriptions
SELECT
    s.quarantined_at,
    s.quarantine_reason
FROM pgmb.subscriptions AS s
WHERE s.id = %(subscription_id)s;

-- name: release_subscription
-- Take a subscription out of quarantine and dispatch what it has missed.
-- params: subscription_id
-- rows: how many events it gets, and ids of those on which its condition fails
-- index: none
SELECT
    r.redelivered,
    r.failed_event_ids::text[] AS failed_event_ids
FROM pgmb.release_subscription(%(subscription_id)s) AS r;

-- name: set_group_cursor
-- Store how far a group has read.
-- params: group_id, cursor, release
-- rows: one, without meaning
-- index: primary key of pgmb.subscription_groups
SELECT pgmb.set_group_cursor(%(group_id)s, %(cursor)s, %(release)s);

-- name: release_group_lock
-- Give a group up.
-- params: group_id
-- rows: one, without meaning
-- index: none
SELECT pgmb.release_group_lock(%(group_id)s);

-- name: pin_reader
-- Have a server notice soon that its client's machine is gone: until then nobody else gets the group.
-- params: none
-- rows: one, without meaning
-- index: none
SELECT
    set_config('tcp_keepalives_idle', '15', FALSE) AS idle,
    set_config('tcp_keepalives_interval', '5', FALSE) AS pause,
    set_config('tcp_keepalives_count', '3', FALSE) AS probes;
