-- Progress of a run of a job in each shard, so that it can continue after a pause or a crash.
-- needs: maintenance_runs
CREATE TABLE queuekeeper.maintenance_progress (
    maintenance_run_id text NOT NULL,
    shard text NOT NULL, -- host:port, with a range of hash slots where a server is shared out
    cursor text NOT NULL DEFAULT '0', -- where to go on: server's run id and SCAN's cursor, or what the job goes by
    scanned bigint NOT NULL DEFAULT 0,
    removed bigint NOT NULL DEFAULT 0,
    repaired bigint NOT NULL DEFAULT 0,
    freed_bytes bigint NOT NULL DEFAULT 0,
    counts jsonb NOT NULL DEFAULT '{}', -- the same in detail, by the names of the plan
    done boolean NOT NULL DEFAULT FALSE,
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    state text NOT NULL DEFAULT 'running', -- at work, or how its last work ended; of no meaning once it is done
    CONSTRAINT maintenance_progress_pkey PRIMARY KEY (maintenance_run_id, shard),
    CONSTRAINT maintenance_progress_state_check CHECK (state IN ('running', 'stopped', 'failed')),
    CONSTRAINT maintenance_progress_maintenance_run_id_fkey FOREIGN KEY (maintenance_run_id)
    REFERENCES queuekeeper.maintenance_runs (maintenance_run_id) ON DELETE CASCADE
);
