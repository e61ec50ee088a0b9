-- Whole rows that cannot be copied as they are, with the reason; they wait for repair and replay.
-- needs: plans
CREATE TABLE queuekeeper.quarantine (
    quarantine_id bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    plan_id text NOT NULL,
    cohort int NOT NULL,
    kind text NOT NULL, -- message: a row of device_publish_msg; session: one of device_session_ctx
    reason text NOT NULL,
    detail text NOT NULL,
    client_id text NOT NULL,
    serial_number bigint, -- null for a session
    topic text,
    time bigint,
    packet_id bigint,
    packet_type text,
    qos int,
    payload bytea,
    user_properties text,
    retain boolean,
    msg_expiry_interval int,
    payload_format_indicator int,
    content_type text,
    response_topic text,
    correlation_data bytea,
    last_packet_id bigint, -- of a session
    status text NOT NULL DEFAULT 'open',
    assigned_packet_id int, -- under which a message was replayed
    replayed_at timestamptz,
    quarantined_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT quarantine_pkey PRIMARY KEY (quarantine_id),
    CONSTRAINT quarantine_plan_id_fkey FOREIGN KEY (plan_id) REFERENCES queuekeeper.plans (plan_id) ON DELETE CASCADE,
    CONSTRAINT quarantine_kind_check CHECK (kind IN ('message', 'session')),
    CONSTRAINT quarantine_serial_number_check CHECK (kind = 'session' OR serial_number IS NOT NULL),
    CONSTRAINT quarantine_status_check CHECK (status IN ('open', 'replayed')),
    CONSTRAINT quarantine_replayed_check CHECK ((status = 'replayed') = (replayed_at IS NOT NULL))
);

-- One entry per source row. Two indexes, since PostgreSQL 14 holds two nulls to be different.
-- Serves statement quarantined_rows.
CREATE UNIQUE INDEX quarantine_message_key ON queuekeeper.quarantine (plan_id, client_id, serial_number)
WHERE kind = 'message';

CREATE UNIQUE INDEX quarantine_session_key ON queuekeeper.quarantine (plan_id, client_id)
WHERE kind = 'session';

-- Serves the statements delete_open_quarantine and replayed_keys.
CREATE INDEX quarantine_plan_id_cohort_idx ON queuekeeper.quarantine (plan_id, cohort, status);
