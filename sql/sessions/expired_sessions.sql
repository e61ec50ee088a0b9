-- Count the messages in some blocks of the vendor's table whose life is over, by session.
-- params: first_place, end_place, default_ttl_s; both places are such as (1000,0), the latter not included
-- rows: (client_id, messages)
-- index: none; reads the blocks named
SELECT
    client_id,
    count(*) AS messages
FROM device_publish_msg
WHERE
    ctid >= %(first_place)s::tid
    AND ctid < %(end_place)s::tid
    AND queuekeeper.message_expires_at_ms(time, msg_expiry_interval, %(default_ttl_s)s)
    <= extract(EPOCH FROM statement_timestamp()) * 1000
GROUP BY client_id
