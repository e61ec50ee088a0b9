-- Numbers of one compacted queue in a quality run. Counts of faults are 0 in a healthy queue.
-- needs: quality_runs
CREATE TABLE queuekeeper.compacted_profiles (
    quality_run_id text NOT NULL,
    client_id text NOT NULL,
    client_hash text NOT NULL, -- keyed hash of the client id: the name that reports show
    incarnation bigint NOT NULL, -- when the queue was made: another one has another
    epoch bigint NOT NULL,
    sequence bigint NOT NULL, -- given out last
    sent bigint NOT NULL,
    acked bigint NOT NULL,
    rewinds bigint NOT NULL, -- only they take the cursor back
    live bigint NOT NULL, -- keys with a value or a tombstone
    tombstones bigint NOT NULL,
    lag bigint NOT NULL, -- messages not delivered yet
    in_flight bigint NOT NULL,
    size_bytes bigint NOT NULL, -- of keys and values, as the queue says
    lost_unacked bigint NOT NULL, -- messages that went by retention or limit, and nobody had acknowledged
    oldest_undelivered_s double precision, -- age; null: everything was delivered
    oldest_unacked_s double precision, -- age; null: everything was acknowledged
    missing_values bigint NOT NULL, -- entries of the order without a value
    orphan_values bigint NOT NULL, -- values that no entry of the order names
    stale_values bigint NOT NULL, -- values with another sequence than their entry
    index_faults bigint NOT NULL, -- other entries that disagree: instants, tombstones, sequences
    cursor_faults bigint NOT NULL, -- cursor and messages in flight that disagree
    wrong_bytes int NOT NULL, -- 1: the queue says another size than it has
    unreadable int NOT NULL, -- 1: its keys could not be read
    registered int NOT NULL, -- 1: the collector knows of the queue
    overdue_s double precision NOT NULL, -- for how long its oldest due message has been due
    heartbeat_s double precision NOT NULL, -- since the collector finished the queue's part of the registry, or since
    -- the queue was made
    CONSTRAINT compacted_profiles_pkey PRIMARY KEY (quality_run_id, client_id),
    CONSTRAINT compacted_profiles_quality_run_id_fkey FOREIGN KEY (quality_run_id)
    REFERENCES queuekeeper.quality_runs (quality_run_id) ON DELETE CASCADE
);
CREATE INDEX compacted_profiles_client_hash_idx ON queuekeeper.compacted_profiles (client_hash);
