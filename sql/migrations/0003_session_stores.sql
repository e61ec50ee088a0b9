-- Return the instant at which the life of a row of device_publish_msg ends, counted from its own time.
-- MQTT's interval is unsigned, and the column is the signed view of it. Numeric, since broken rows hold times that
-- would overflow.
CREATE FUNCTION queuekeeper.message_expires_at_ms(time_ms bigint, msg_expiry_interval int, default_ttl_s bigint)
RETURNS numeric
LANGUAGE sql
IMMUTABLE
PARALLEL SAFE
AS $$
    SELECT time_ms::numeric + 1000 * coalesce(
        msg_expiry_interval::bigint + CASE WHEN msg_expiry_interval < 0 THEN 4294967296 ELSE 0 END, default_ttl_s
    )
$$;

-- What a session in the vendor's tables has beyond their columns.
CREATE TABLE queuekeeper.session_states (
    client_id text NOT NULL,
    known_serial bigint NOT NULL, -- serial given out last, when this row was written; less in the vendor's row: cleared
    message_bound int, -- no more messages wait, as long as known_serial is the last serial; null: unknown
    delivered_serial bigint NOT NULL DEFAULT -1, -- messages up to here have been sent
    until_ms bigint, -- end of the session when no messages wait; null: not known
    trimmed bigint NOT NULL DEFAULT 0, -- messages removed because there were too many
    expired bigint NOT NULL DEFAULT 0, -- messages removed, or not stored, because their life was over
    refused bigint NOT NULL DEFAULT 0, -- messages not stored because their expiry interval is none
    quarantined bigint NOT NULL DEFAULT 0,
    CONSTRAINT session_states_pkey PRIMARY KEY (client_id)
);

-- The batch that each source stored last in a session, so that a retry stores nothing twice.
CREATE TABLE queuekeeper.session_sources (
    client_id text NOT NULL,
    source text NOT NULL,
    batch_offset bigint NOT NULL,
    first_serial bigint NOT NULL, -- of the messages that were stored; the others follow without gaps
    packet_ids int[] NOT NULL, -- of every message of the batch, null where it was refused
    CONSTRAINT session_sources_pkey PRIMARY KEY (client_id, source),
    CONSTRAINT session_sources_client_id_fkey FOREIGN KEY (client_id)
    REFERENCES queuekeeper.session_states (client_id) ON DELETE CASCADE
);

-- Rows of device_publish_msg that nobody could deliver, whole, with the reason.
CREATE TABLE queuekeeper.session_quarantine (
    quarantine_id bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    reason text NOT NULL,
    client_id text NOT NULL,
    serial_number bigint NOT NULL,
    topic text NOT NULL,
    time bigint NOT NULL,
    packet_id int,
    packet_type text,
    qos int NOT NULL,
    payload bytea NOT NULL,
    user_properties text,
    retain boolean,
    msg_expiry_interval int,
    payload_format_indicator int,
    content_type text,
    response_topic text,
    correlation_data bytea,
    quarantined_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT session_quarantine_pkey PRIMARY KEY (quarantine_id)
);

-- Serves whoever looks for a session's rows.
CREATE INDEX session_quarantine_client_id_idx ON queuekeeper.session_quarantine (client_id, serial_number);
