-- Load messages as the vendor's broker stores them.
-- params: none; rows follow in the order of the columns
-- rows: none
-- index: none
COPY device_publish_msg (
    client_id, serial_number, topic, time, packet_id, packet_type, qos, payload, user_properties, retain,
    msg_expiry_interval, payload_format_indicator, content_type, response_topic, correlation_data
) FROM STDIN (FORMAT "binary")
