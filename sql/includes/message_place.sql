-- Columns of the place of a message in its session: they stand before its payload.
client_id,
serial_number,
topic,
time,
packet_id,
packet_type,
qos,
