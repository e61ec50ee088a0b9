-- Rows of the suite of source against target: each session in PostgreSQL and in Redis.
-- Of the source, only messages that a migration copies: none expired, beyond the limit, or in quarantine.
-- params: redis_profile_id, postgres_profile_id
-- rows: (client_hash, client_id, cohort, source_present, target_present, source_last_packet_id, target_last_packet_id,
-- source_messages, target_messages, source_lowest_serial, target_lowest_serial, source_highest_serial,
-- target_highest_serial, is_settled, is_whole); is_settled when no message of it expired between the two readings,
-- is_whole when the whole source is copied, so that lowest and highest serial are the same, too
-- index: queue_profiles_pkey, quarantine_message_key
WITH readings AS (
    SELECT extract(EPOCH FROM max(finished_at)) * 1000 AS ended_at_ms
    FROM queuekeeper.profiles
    WHERE profile_id IN (%(redis_profile_id)s, %(postgres_profile_id)s)
),

quarantined AS (
    SELECT
        client_id,
        count(DISTINCT serial_number) FILTER (WHERE status = 'open') AS messages,
        bool_or(status = 'replayed') AS were_replayed
    FROM queuekeeper.quarantine
    WHERE kind = 'message'
    GROUP BY client_id
),

source AS (
    SELECT
        queues.*,
        coalesce(quarantined.messages, 0) AS set_aside,
        coalesce(quarantined.were_replayed, FALSE) AS were_replayed
    FROM queuekeeper.queue_profiles AS queues
    LEFT JOIN quarantined ON queues.client_id = quarantined.client_id
    WHERE queues.profile_id = %(postgres_profile_id)s AND queues.client_id <> ''
),

target AS (
    SELECT queues.*
    FROM queuekeeper.queue_profiles AS queues
    WHERE queues.profile_id = %(redis_profile_id)s
),

compared AS (
    SELECT
        coalesce(source.client_hash, target.client_hash) AS client_hash,
        coalesce(source.client_id, target.client_id) AS client_id,
        coalesce(source.cohort, target.cohort) AS cohort,
        greatest(0, coalesce(source.live, 0) - coalesce(source.over_limit, 0) - coalesce(source.set_aside, 0))
            AS source_messages,
        coalesce(target.live, 0) AS target_messages,
        CASE
            -- Where none is on record, or one from which a broker would give out packet ids of waiting messages, a
            -- migration writes another.
            WHEN source.counter_missing + source.counter_invalid + source.counter_behind > 0
                THEN target.last_packet_id
            -- A replay passes the packet ids of messages that the source has in quarantine.
            WHEN source.were_replayed THEN target.last_packet_id
            -- Our own store passes over packet ids in use when it comes to them; a migration passes them at once.
            -- Whether it has passed all of them, Q11 says of the target.
            WHEN
                source.next_in_use = 1
                AND mod(target.last_packet_id - source.last_packet_id + 65535, 65535) BETWEEN 1 AND source.live
                THEN target.last_packet_id
            WHEN source.last_packet_id BETWEEN 1 AND 65535 THEN source.last_packet_id
        END AS source_last_packet_id,
        target.last_packet_id AS target_last_packet_id,
        source.lowest_serial AS source_lowest_serial,
        target.lowest_serial AS target_lowest_serial,
        source.highest_serial AS source_highest_serial,
        target.highest_serial AS target_highest_serial,
        coalesce(
            least(source.earliest_expires_at_ms, target.earliest_expires_at_ms) > readings.ended_at_ms, TRUE
        ) AS is_settled,
        coalesce(source.dead + source.over_limit + source.set_aside, 0) + coalesce(target.dead, 0) = 0 AS is_whole
    FROM source
    FULL JOIN target ON source.client_id = target.client_id
    CROSS JOIN readings
)

SELECT
    client_hash,
    client_id,
    cohort,
    cast(source_messages > 0 OR source_last_packet_id IS NOT NULL AS int) AS source_present,
    cast(target_messages > 0 OR target_last_packet_id IS NOT NULL AS int) AS target_present,
    source_last_packet_id,
    target_last_packet_id,
    source_messages,
    target_messages,
    source_lowest_serial,
    target_lowest_serial,
    source_highest_serial,
    target_highest_serial,
    cast(is_settled AS int) AS is_settled,
    cast(is_settled AND is_whole AS int) AS is_whole
FROM compared
