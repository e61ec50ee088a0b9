-- State of a session in the vendor's tables that their columns do not have.
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
