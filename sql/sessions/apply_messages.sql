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
            %(client_ids)s::varchar[], %(serials)s::bigint[], %(topics)s::varchar[], %(times_ms)s::bigint[],
            %(packet_ids)s::int[], %(packet_types)s::varchar[], %(qos)s::int[], %(payloads)s::bytea[],
            %(user_properties)s::varchar[], %(retain)s::boolean[], %(expiry_intervals)s::int[],
            %(payload_format_indicators)s::int[], %(content_types)s::varchar[], %(response_topics)s::varchar[],
            %(correlation_data)s::bytea[]
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
