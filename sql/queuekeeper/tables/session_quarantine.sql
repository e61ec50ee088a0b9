-- Whole rows of device_publish_msg that could not be delivered, with the reason.
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
    status text NOT NULL DEFAULT 'open',
    assigned_serial_number bigint, -- under which it was replayed; null also where nobody knows it any more
    assigned_packet_id int, -- likewise
    replayed_at timestamptz,
    replayed_by text,
    CONSTRAINT session_quarantine_pkey PRIMARY KEY (quarantine_id),
    CONSTRAINT session_quarantine_status_check CHECK (status IN ('open', 'replayed')),
    CONSTRAINT session_quarantine_replayed_check CHECK ((status = 'replayed') = (replayed_at IS NOT NULL))
);

-- Serves statements that look for a session's rows.
CREATE INDEX session_quarantine_client_id_idx ON queuekeeper.session_quarantine (client_id, serial_number);
