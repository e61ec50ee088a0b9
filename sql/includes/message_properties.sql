-- Columns of the properties of a message but those of its user.
retain,
msg_expiry_interval,
payload_format_indicator,
content_type,
response_topic,
correlation_data,
