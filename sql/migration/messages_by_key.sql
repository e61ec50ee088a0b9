-- Whole messages by client id and serial number.
-- Parameters: client_ids text[], serial_numbers bigint[], of equal length.
-- Rows: the columns of device_publish_msg in the vendor's order. Uses device_publish_msg_pkey.
SELECT
    message.client_id,
    message.serial_number,
    message.topic,
    message.time,
    message.packet_id,
    message.packet_type,
    message.qos,
    message.payload,
    message.user_properties,
    message.retain,
    message.msg_expiry_interval,
    message.payload_format_indicator,
    message.content_type,
    message.response_topic,
    message.correlation_data
FROM unnest(%(client_ids)s::text[], %(serial_numbers)s::bigint[]) AS wanted (client_id, serial_number)
INNER JOIN device_publish_msg AS message
    ON wanted.client_id = message.client_id AND wanted.serial_number = message.serial_number
