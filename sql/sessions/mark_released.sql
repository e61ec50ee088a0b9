-- Turn a live message into PUBREL without a body; place and expiry stay.
-- params: client_id, packet_id, serial, default_ttl_s; serial: null for whatever has the packet id
-- rows: one: (messages released now, messages released before)
-- index: idx_device_publish_msg_packet_id, device_publish_msg_pkey
WITH found AS (
    SELECT
        client_id,
        serial_number,
        packet_type
    FROM device_publish_msg
    WHERE
        client_id = %(client_id)s
        AND packet_id = %(packet_id)s
        AND serial_number = coalesce(%(serial)s::bigint, serial_number)
        AND queuekeeper.message_expires_at_ms(time, msg_expiry_interval, %(default_ttl_s)s)
        > extract(EPOCH FROM statement_timestamp()) * 1000
    ORDER BY serial_number
    FOR UPDATE
),

released AS (
    UPDATE device_publish_msg AS msg
    SET
        packet_type = 'PUBREL',
        payload = ''
    FROM found
    WHERE
        msg.client_id = found.client_id
        AND msg.serial_number = found.serial_number
        AND found.packet_type = 'PUBLISH'
    RETURNING msg.serial_number
)

SELECT
    (SELECT count(*) FROM released) AS released,
    (
        SELECT count(*) FROM found
        WHERE found.packet_type = 'PUBREL'
    ) AS released_before
