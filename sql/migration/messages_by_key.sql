-- Whole messages by client id and serial number.
-- Parameters: client_ids text[], serial_numbers bigint[], of equal length.
-- Rows: the columns of device_publish_msg in the vendor's order. Uses device_publish_msg_pkey.
SELECT
    message.client_id,
    -- include: whole_message
    message.correlation_data
FROM unnest(%(client_ids)b::text[], %(serial_numbers)b::bigint[]) AS wanted (client_id, serial_number)
INNER JOIN device_publish_msg AS message
    ON wanted.client_id = message.client_id AND wanted.serial_number = message.serial_number
