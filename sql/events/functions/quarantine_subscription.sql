-- Stop evaluating a subscription's condition, and say why; what is sent to it directly still arrives.
-- Returns whether this call did it: not when it was quarantined already, or is gone.
-- The last dispatch before is noted, so that release_subscription finds what it misses.
CREATE FUNCTION pgmb.quarantine_subscription(sid varchar(24), reason text)
RETURNS boolean
LANGUAGE plpgsql
SET search_path TO pgmb, pg_temp
AS $$
BEGIN
    UPDATE subscriptions AS s
    SET
        quarantined_at = now(),
        quarantine_reason = reason,
        quarantine_dispatch_id = (SELECT st.last_dispatch_id FROM dispatch_state AS st)
    WHERE s.id = sid AND s.quarantined_at IS NULL;
    RETURN FOUND;
END
$$;
