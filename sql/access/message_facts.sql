-- Return the facts of the vendor's messages that quality judges, in a range of blocks: sizes instead of payloads, and
-- no topics. `queuekeeper acl postgres` creates it, not a migration, since the vendor's table may be created later, and
-- dropped by its owner. It runs as its owner, so that its caller needs no right to read payloads; a table whose rows
-- are hidden from its owner by row security is refused.
CREATE OR REPLACE FUNCTION queuekeeper.message_facts(first_row tid, end_row tid)
RETURNS TABLE (
    client_id varchar,
    serial_number bigint,
    time_ms bigint,
    packet_id int,
    packet_type varchar,
    qos int,
    payload_bytes int,
    msg_expiry_interval int
)
LANGUAGE sql
STABLE
SECURITY DEFINER
SET search_path = ''
SET row_security = off
AS $$
    SELECT
        msg.client_id,
        msg.serial_number,
        msg.time,
        msg.packet_id,
        msg.packet_type,
        msg.qos,
        octet_length(msg.payload),
        msg.msg_expiry_interval
    FROM public.device_publish_msg AS msg
    WHERE msg.ctid >= first_row AND msg.ctid < end_row
$$;
