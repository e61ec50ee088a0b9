-- Load sessions as the vendor's broker stores them.
-- params: none; rows follow in the order of the columns
-- rows: none
-- index: none
COPY device_session_ctx (client_id, last_updated_time, last_serial_number, last_packet_id)
FROM STDIN (FORMAT "binary")
