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
RETURNING id, created_at
