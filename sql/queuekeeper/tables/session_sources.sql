-- Last batch that each source stored in a session, so that a retry stores nothing twice.
-- needs: session_states
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
