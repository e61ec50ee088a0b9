-- Return the events of a window that a poll has not taken yet, in the order of dispatch, at most so many.
-- They are visible in the snapshot current_window, but not in the one before, which ends at seen_to and has the
-- transactions of open_ids at work, nor taken already: up to taken_event_id of taken_transaction_id.
-- Planning for all partitions takes longer than finding a few events, so one plan serves all calls. It goes along the
-- index: nothing else gives that order without sorting.
CREATE FUNCTION pgmb.window_events(
    current_window pg_snapshot,
    open_ids xid8[],
    seen_to xid8,
    taken_transaction_id xid8,
    taken_event_id varchar(24),
    max_events int
)
RETURNS TABLE (id pgmb.event_id, subscription_id pgmb.subscription_id, transaction_id xid8, bytes bigint)
LANGUAGE plpgsql
STABLE
SET search_path TO pgmb, pg_temp
SET plan_cache_mode TO force_generic_plan
SET enable_sort TO off
AS $$
#variable_conflict use_column
DECLARE
    from_transaction_id CONSTANT xid8 := greatest(seen_to, taken_transaction_id);
    from_event_id CONSTANT event_id := CASE WHEN taken_transaction_id >= seen_to THEN taken_event_id ELSE '' END;
    late_count int := 0;
BEGIN
    -- Transactions that were open then come first: their ids are below those of later ones. Usually there are none, and
    -- a statement that may read every partition costs time for each, even if it finds nothing.
    IF cardinality(open_ids) > 0 THEN
        RETURN QUERY
        SELECT late.id, late.subscription_id, late.transaction_id, late.bytes
        FROM unnest(open_ids) AS x(transaction_id)
        CROSS JOIN LATERAL (
            SELECT e.id, e.subscription_id, e.transaction_id, event_weight(e.payload, e.metadata) AS bytes
            FROM events AS e
            WHERE
                e.transaction_id = x.transaction_id
                AND e.id > CASE WHEN x.transaction_id = taken_transaction_id THEN taken_event_id ELSE '' END
            ORDER BY e.transaction_id, e.id
            LIMIT max_events
        ) AS late
        WHERE
            pg_visible_in_snapshot(x.transaction_id, current_window)
            AND x.transaction_id >= coalesce(taken_transaction_id, '0')
        ORDER BY late.transaction_id, late.id
        LIMIT max_events;
        GET DIAGNOSTICS late_count = ROW_COUNT;
    END IF;
    -- Weighed once they are found: in the partitions' own scans that would be set up for each partition.
    RETURN QUERY
    SELECT found.id, found.subscription_id, found.transaction_id, event_weight(found.payload, found.metadata) AS bytes
    FROM (
        SELECT e.*
        FROM events AS e
        WHERE
            (e.transaction_id, e.id) > (from_transaction_id, from_event_id)
            AND e.transaction_id < pg_snapshot_xmax(current_window)
            AND pg_visible_in_snapshot(e.transaction_id, current_window)
        ORDER BY e.transaction_id, e.id
        LIMIT max_events - late_count
    ) AS found
    ORDER BY found.transaction_id, found.id;
END
$$;
