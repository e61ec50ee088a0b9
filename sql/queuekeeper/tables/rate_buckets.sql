-- What those who share a rate have taken: the copies of a plan, the tasks of a profile, the shards of a run.
-- After a crash of the server a bucket begins anew: no row is worth a place in the server's log.
CREATE UNLOGGED TABLE queuekeeper.rate_buckets (
    run_id text NOT NULL,
    debt double precision NOT NULL,
    per_s double precision NOT NULL,
    taken_at timestamptz NOT NULL,
    CONSTRAINT rate_buckets_pkey PRIMARY KEY (run_id)
);
