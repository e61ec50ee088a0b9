-- Store that owns a session, for sessions that move or have moved while devices are connected; PostgreSQL owns all
-- others. A transaction that writes a session locks its row in share mode until it ends.
CREATE TABLE queuekeeper.session_owners (
    client_id text NOT NULL,
    slot int NOT NULL, -- key_slot of the client id
    owner text NOT NULL, -- redis: the layout of TBMQ; packed: the packed layout of the same Redis
    epoch bigint NOT NULL, -- microseconds at first; grows with every change of owner or state
    state text NOT NULL DEFAULT 'settled',
    fenced_until timestamptz, -- nobody but the driver writes before; lifted by the first who comes after
    driver bigint, -- who fenced it last
    mirrored boolean NOT NULL DEFAULT FALSE, -- changes are written to the store that it came from, too
    CONSTRAINT session_owners_pkey PRIMARY KEY (client_id),
    CONSTRAINT session_owners_owner_check CHECK (owner IN ('postgres', 'redis', 'packed')),
    CONSTRAINT session_owners_epoch_check CHECK (epoch > 0),
    CONSTRAINT session_owners_state_check CHECK (state IN ('settled', 'fenced')),
    CONSTRAINT session_owners_fenced_until_check CHECK ((state = 'fenced') = (fenced_until IS NOT NULL))
);

-- Serves statements that list the clients of a cohort.
CREATE INDEX session_owners_slot_idx ON queuekeeper.session_owners (slot, owner);
