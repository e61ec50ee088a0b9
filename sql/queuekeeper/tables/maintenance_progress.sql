-- How far a cleanup has come in each shard, so that it can pause, be killed and go on.
-- needs: maintenance_runs
CREATE TABLE queuekeeper.maintenance_progress (
    maintenance_run_id text NOT NULL,
    shard text NOT NULL, -- host:port
    cursor text NOT NULL DEFAULT '0', -- of SCAN: where to go on
    scanned bigint NOT NULL DEFAULT 0,
    removed bigint NOT NULL DEFAULT 0,
    repaired bigint NOT NULL DEFAULT 0,
    freed_bytes bigint NOT NULL DEFAULT 0,
    done boolean NOT NULL DEFAULT FALSE,
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT maintenance_progress_pkey PRIMARY KEY (maintenance_run_id, shard),
    CONSTRAINT maintenance_progress_maintenance_run_id_fkey FOREIGN KEY (maintenance_run_id)
    REFERENCES queuekeeper.maintenance_runs (maintenance_run_id) ON DELETE CASCADE
);
