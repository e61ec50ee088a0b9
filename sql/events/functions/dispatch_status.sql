-- Return the state of dispatching. Counts of waiting events stop at 100,000.
CREATE FUNCTION pgmb.dispatch_status()
RETURNS TABLE (
    polled_at timestamptz,
    last_dispatch_id pgmb.event_id,
    undispatched bigint,
    oldest_undispatched_id pgmb.event_id,
    scheduled bigint,
    overdue bigint,
    reenqueued bigint,
    quarantined_subscriptions bigint,
    retention_limit pgmb.event_id,
    head_room interval,
    overflow_in_use boolean
)
LANGUAGE sql
STABLE
SECURITY DEFINER
SET search_path TO pgmb, pg_temp
AS $$
    SELECT
        st.polled_at,
        st.last_dispatch_id,
        u.number,
        u.oldest_id,
        (SELECT count(*) FROM (SELECT FROM scheduled_events LIMIT 100000) AS sc),
        (SELECT count(*) FROM (SELECT FROM scheduled_events WHERE due_at <= now() LIMIT 100000) AS sc),
        (SELECT count(*) FROM (SELECT FROM due_events LIMIT 100000) AS du),
        (SELECT count(*) FROM subscriptions AS s WHERE s.quarantined_at IS NOT NULL),
        retention_limit(),
        o.begins_at - clock_timestamp(),
        o.begins_at <= clock_timestamp()
    FROM dispatch_state AS st
    CROSS JOIN LATERAL (
        SELECT count(*) AS number, min(e.id)::event_id AS oldest_id FROM undispatched_events(max_events => 100000) AS e(id)
    ) AS u
    LEFT JOIN LATERAL (
        SELECT extract_date_from_event_id(b.lower_bound) AS begins_at
        FROM partition_bounds('events') AS b
        WHERE b.upper_bound IS NULL
    ) AS o ON TRUE
$$;
