-- Make messages of a session equal to what another store holds of them.
-- params: client_ids, serials, topics, times_ms, packet_ids, packet_types, qos, payloads, user_properties, retain,
-- expiry_intervals, payload_format_indicators, content_types, response_topics, correlation_data
-- rows: one: (messages written; those that were equal are not)
-- index: device_publish_msg_pkey
WITH written AS (
    INSERT INTO device_publish_msg AS msg (
        client_id, serial_number, topic, time, packet_id, packet_type, qos, payload, user_properties, retain,
        msg_expiry_interval, payload_format_indicator, content_type, response_topic, correlation_data
    )
    SELECT given.*
    FROM
        unnest(
            %(client_ids)b::varchar[], %(serials)b::bigint[], %(topics)b::varchar[], %(times_ms)b::bigint[],
            %(packet_ids)b::int[], %(packet_types)b::varchar[], %(qos)b::int[], %(payloads)b::bytea[],
            %(user_properties)b::varchar[], %(retain)b::boolean[], %(expiry_intervals)b::int[],
            %(payload_format_indicators)b::int[], %(content_types)b::varchar[], %(response_topics)b::varchar[],
            %(correlation_data)b::bytea[]
        ) AS given
    ON CONFLICT (client_id, serial_number) DO UPDATE
        SET
            topic = excluded.topic,
            time = excluded.time,
            packet_id = excluded.packet_id,
            packet_type = excluded.packet_type,
            qos = excluded.qos,
            payload = excluded.payload,
            user_properties = excluded.user_properties,
            retain = excluded.retain,
            msg_expiry_interval = excluded.msg_expiry_interval,
            payload_format_indicator = excluded.payload_format_indicator,
            content_type = excluded.content_type,
            response_topic = excluded.response_topic,
            correlation_data = excluded.correlation_data
        WHERE msg.* IS DISTINCT FROM excluded.*
    RETURNING msg.serial_number
)

SELECT count(*) AS messages
FROM written
