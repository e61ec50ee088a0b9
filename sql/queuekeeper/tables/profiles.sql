-- Profiles: readings of a store for its quality, with their parameters and times.
CREATE TABLE queuekeeper.profiles (
    profile_id text NOT NULL,
    store text NOT NULL,
    target text NOT NULL, -- address without user and password, and the prefix of keys: what may be compared
    mode text NOT NULL, -- fast: the cohorts of one turn; full: all that were chosen
    contents boolean NOT NULL, -- whether the messages' JSON was judged too
    cohort_count int NOT NULL,
    cohorts int[] NOT NULL, -- that were read
    sample_percent int NOT NULL, -- of their slots; a smaller sample is part of a larger one
    session_limit int NOT NULL, -- messages that a session may hold
    default_ttl_s bigint NOT NULL, -- life of a message without expiry
    max_payload_bytes bigint NOT NULL,
    as_of_ms bigint NOT NULL, -- the store's own clock when reading began
    queues bigint, -- null until the reading is complete
    messages bigint,
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    finished_at timestamptz,
    CONSTRAINT profiles_pkey PRIMARY KEY (profile_id),
    CONSTRAINT profiles_store_check CHECK (store IN ('redis', 'postgres')),
    CONSTRAINT profiles_mode_check CHECK (mode IN ('fast', 'full')),
    CONSTRAINT profiles_sample_percent_check CHECK (sample_percent BETWEEN 1 AND 100)
);
