-- Return what quality judges of the vendor's messages in a range of blocks: sizes in place of payloads, and no topics.
-- `queuekeeper acl postgres` makes it, not a migration: the vendor's table may come later, and be dropped by its owner.
-- It runs as its owner, so that whoever calls it need not be allowed to read a payload; a table whose rows are kept
-- from its owner by row security is refused.
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
