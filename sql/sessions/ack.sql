-- Remove the messages of a session that the client has acknowledged, expired or not.
-- params: client_id, packet_ids, serials; serials: null for whatever has the packet id
-- rows: (packet_id, serial) of each message removed
-- index: idx_device_publish_msg_packet_id, device_publish_msg_pkey
WITH doomed AS (
    SELECT
        msg.client_id,
        msg.serial_number
    FROM unnest(%(packet_ids)b::int[], %(serials)b::bigint[]) AS confirmed (packet_id, serial_number)
    INNER JOIN device_publish_msg AS msg ON confirmed.packet_id = msg.packet_id
    WHERE
        msg.client_id = %(client_id)s
        AND msg.serial_number = coalesce(confirmed.serial_number, msg.serial_number)
    ORDER BY msg.serial_number
    FOR UPDATE OF msg
)

DELETE FROM device_publish_msg AS msg
USING doomed
WHERE (msg.client_id, msg.serial_number) = (doomed.client_id, doomed.serial_number)
RETURNING msg.packet_id, msg.serial_number
