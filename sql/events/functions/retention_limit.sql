-- Return the id below which no event and no dispatch is needed: all at or above it must stay.
-- Events are needed that a live group has not read, that were not dispatched, or that will be dispatched again. A group
-- is live while it has a subscription that has not expired. wait_for_consumers => false ignores the groups.
CREATE FUNCTION pgmb.retention_limit(wait_for_consumers boolean DEFAULT NULL)
RETURNS pgmb.event_id
LANGUAGE plpgsql
STABLE
SECURITY DEFINER
SET search_path TO pgmb, pg_temp
AS $$
DECLARE
    pending_id text;
    needed_id text;
BEGIN
    IF coalesce(wait_for_consumers, get_config_value('retention_waits_for_consumers')::boolean) THEN
        SELECT min(p.id)
        INTO pending_id
        FROM (
            SELECT
                g.id,
                left(g.last_read_event_id, 15) || '000000000' AS dispatch_id,
                ('x' || lpad(right(g.last_read_event_id, 9), 16, '0'))::bit(64)::bigint AS position
            FROM subscription_groups AS g
            WHERE EXISTS (
                SELECT FROM subscriptions AS s
                WHERE
                    s.group_id = g.id
                    AND (s.expiry_interval IS NULL OR add_interval_imm(s.last_active_at, s.expiry_interval) >= now())
            )
        ) AS r
        CROSS JOIN LATERAL (
            (
                SELECT se.id
                FROM subscription_events AS se
                WHERE
                    se.group_id = r.id
                    AND se.id = r.dispatch_id
                    AND coalesce(se.positions[cardinality(se.positions)], se.match_count) > r.position
                LIMIT 1
            )
            UNION ALL
            (
                SELECT se.id
                FROM subscription_events AS se
                WHERE se.group_id = r.id AND se.id > r.dispatch_id
                ORDER BY se.id
                LIMIT 1
            )
        ) AS p;
        -- A later dispatch may hold an older event: its transaction was long.
        SELECT least(pending_id, min(d.first_event_id)) INTO needed_id FROM dispatches AS d WHERE d.id >= pending_id;
    END IF;
    RETURN least(
        create_event_id(clock_timestamp(), 0)::text,
        needed_id,
        (SELECT min(u.id) FROM undispatched_events() AS u(id)),
        (SELECT min(du.event_id) FROM due_events AS du)
    );
END
$$;
