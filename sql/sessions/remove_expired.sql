-- Remove the messages in some blocks of the vendor's table whose life is over; what others hold is left to the next
-- run, so that this one waits for nobody.
-- params: first_place, end_place, default_ttl_s, client_ids; both places are such as (1000,0), the latter not included;
-- client_ids: of the sessions to look at; null for all
-- rows: (client_id, messages removed)
-- index: device_publish_msg_pkey; reads the blocks named
WITH doomed AS (
    SELECT
        client_id,
        serial_number
    FROM device_publish_msg
    WHERE
        ctid >= %(first_place)s::tid
        AND ctid < %(end_place)s::tid
        AND queuekeeper.message_expires_at_ms(time, msg_expiry_interval, %(default_ttl_s)s)
        <= extract(EPOCH FROM statement_timestamp()) * 1000
        AND (%(client_ids)s::varchar[] IS NULL OR client_id = any(%(client_ids)s::varchar[]))
    FOR UPDATE SKIP LOCKED
),

removed AS (
    DELETE FROM device_publish_msg AS msg
    USING doomed
    WHERE (msg.client_id, msg.serial_number) = (doomed.client_id, doomed.serial_number)
    RETURNING msg.client_id
)

SELECT
    client_id,
    count(*) AS messages
FROM removed
GROUP BY client_id
