-- Remove the subscriptions whose expiry_interval has passed since they were last active; return their number. With gid,
-- only those of one group. Subscriptions in active_ids stay: their holder is alive, only late with its heartbeat.
CREATE FUNCTION pgmb.expire_subscriptions(
    gid varchar(48) DEFAULT NULL, active_ids varchar(24)[] DEFAULT '{}'
)
RETURNS int
LANGUAGE plpgsql
SET search_path TO pgmb, pg_temp
AS $$
DECLARE
    expired int;
BEGIN
    DELETE FROM subscriptions AS s
    WHERE
        s.expiry_interval IS NOT NULL
        AND add_interval_imm(s.last_active_at, s.expiry_interval) < now()
        AND (gid IS NULL OR s.group_id = gid)
        AND s.id <> ALL(active_ids);
    GET DIAGNOSTICS expired = ROW_COUNT;
    RETURN expired;
END
$$;
