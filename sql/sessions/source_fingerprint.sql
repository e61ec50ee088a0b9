-- Compute a fingerprint of the source, which changes with any row, and not with the place of rows.
-- One statement, so that both tables are read in one snapshot. The columns are named, since an added column may have a
-- type without a hash.
-- params: none
-- rows: one: (system identifier, database, messages, their hash, sessions, their hash)
-- index: none; reads both tables whole
WITH messages AS (
    SELECT
        count(*) AS counted,
        coalesce(
            bit_xor(
                hash_record_extended(
                    row(
                        client_id, serial_number, topic, time, packet_id, packet_type, qos, payload, user_properties,
                        retain, msg_expiry_interval, payload_format_indicator, content_type, response_topic,
                        correlation_data
                    ),
                    0
                )
            ),
            0
        ) AS hash
    FROM device_publish_msg
),

sessions AS (
    SELECT
        count(*) AS counted,
        coalesce(
            bit_xor(hash_record_extended(row(client_id, last_updated_time, last_serial_number, last_packet_id), 0)), 0
        ) AS hash
    FROM device_session_ctx
)

SELECT
    control.system_identifier,
    current_database() AS database,
    messages.counted AS messages,
    messages.hash AS messages_hash,
    sessions.counted AS sessions,
    sessions.hash AS sessions_hash
FROM pg_control_system() AS control
CROSS JOIN messages
CROSS JOIN sessions
