-- The two tables in which TBMQ 1.4 keeps persistent DEVICE sessions, for tests and samples.
-- The index on packet ids is not unique: ids wrap at 65,535, so two pending messages of a client may share one.
CREATE TABLE IF NOT EXISTS device_session_ctx (
    client_id varchar(255) NOT NULL,
    last_updated_time bigint NOT NULL, -- ms since 1970
    last_serial_number bigint, -- given out last; gaps are normal
    last_packet_id int, -- given out last
    CONSTRAINT device_session_ctx_pkey PRIMARY KEY (client_id)
);

CREATE TABLE IF NOT EXISTS device_publish_msg (
    client_id varchar(255) NOT NULL,
    serial_number bigint NOT NULL, -- grows with every message of the client
    topic varchar NOT NULL,
    time bigint NOT NULL, -- ms since 1970, when the broker received it
    packet_id int, -- 1 to 65,535, then 1 again
    packet_type varchar(255), -- PUBLISH, or PUBREL once the client has sent PUBREC
    qos int NOT NULL,
    payload bytea NOT NULL,
    user_properties varchar, -- {"props":[{"k":"name","v":"value"}]}
    retain boolean,
    msg_expiry_interval int, -- seconds, the signed view of an unsigned number
    payload_format_indicator int,
    content_type varchar(255),
    response_topic varchar(255),
    correlation_data bytea,
    CONSTRAINT device_publish_msg_pkey PRIMARY KEY (client_id, serial_number)
);

CREATE INDEX IF NOT EXISTS idx_device_publish_msg_packet_id ON device_publish_msg (client_id, packet_id);
