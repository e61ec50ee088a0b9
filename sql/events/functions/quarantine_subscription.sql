-- Stop evaluating a subscription's condition, and record why; events that are sent to it directly still arrive.
-- Returns true if this call did it, false if the subscription was in quarantine already or is gone.
-- The last dispatch before is recorded, so that release_subscription finds the missed events.
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
