-- Record the last serials and packet ids of locked sessions.
-- params: client_ids, last_serials, last_packet_ids
-- rows: none
-- index: device_session_ctx_pkey
UPDATE device_session_ctx AS ctx
SET
    last_serial_number = given.last_serial,
    last_packet_id = given.last_packet_id
FROM
    unnest(%(client_ids)b::varchar[], %(last_serials)b::bigint[], %(last_packet_ids)b::int[])
        AS given (client_id, last_serial, last_packet_id)
WHERE ctx.client_id = given.client_id
