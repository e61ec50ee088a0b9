-- Numbers of one fan-out queue, and of each of its consumers, in a quality run. Counts of faults are 0 in a healthy
-- queue.
-- needs: quality_runs
CREATE TABLE queuekeeper.fanout_profiles (
    quality_run_id text NOT NULL,
    queue text NOT NULL,
    consumer text NOT NULL, -- empty: what the consumers share
    client_hash text NOT NULL, -- keyed hash of the queue's name, by which known issues name it
    messages bigint NOT NULL, -- stored, or waiting for the consumer or under its leases
    dead_letters bigint NOT NULL,
    missing_payloads bigint NOT NULL, -- messages that an ack is owed for, and that are gone
    lost_references bigint NOT NULL, -- acks that are owed for messages that no consumer has
    orphan_payloads bigint NOT NULL, -- messages that no ack is owed for
    wrong_counts bigint NOT NULL, -- messages that more consumers have than acks are owed for
    wrong_expiries bigint NOT NULL, -- messages without an end of their life, or ends without a message
    doubled bigint NOT NULL, -- messages that the consumer has twice
    left_notes bigint NOT NULL, -- notes on messages that it no longer has
    lost_leases bigint NOT NULL, -- leases without a token
    forsaken_s double precision NOT NULL, -- since it was seen, while something waits for it
    expired_s double precision NOT NULL, -- since the life of the queue's oldest message was over
    dead_overdue_s double precision NOT NULL, -- since its oldest dead letter was to go
    overdue_s double precision NOT NULL, -- since its oldest lease has run out
    lease_left_s double precision NOT NULL, -- until its last lease runs out
    unreadable int NOT NULL, -- 1: its keys could not be read
    CONSTRAINT fanout_profiles_pkey PRIMARY KEY (quality_run_id, queue, consumer),
    CONSTRAINT fanout_profiles_quality_run_id_fkey FOREIGN KEY (quality_run_id)
    REFERENCES queuekeeper.quality_runs (quality_run_id) ON DELETE CASCADE
);
