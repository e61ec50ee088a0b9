-- Return the instant at which the life of a row of device_publish_msg ends, counted from its own time.
-- MQTT's interval is unsigned, and the column is the signed view of it. Numeric, since broken rows hold times that
-- would overflow.
CREATE FUNCTION queuekeeper.message_expires_at_ms(time_ms bigint, msg_expiry_interval int, default_ttl_s bigint)
RETURNS numeric
LANGUAGE sql
IMMUTABLE
PARALLEL SAFE
AS $$
    SELECT time_ms::numeric + 1000 * coalesce(
        msg_expiry_interval::bigint + CASE WHEN msg_expiry_interval < 0 THEN 4294967296 ELSE 0 END, default_ttl_s
    )
$$;
