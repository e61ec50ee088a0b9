-- Fates of all rows of a cohort, found by reading both stores again.
-- needs: plans
CREATE TABLE queuekeeper.ledger (
    plan_id text NOT NULL,
    cohort int NOT NULL,
    rows_seen bigint NOT NULL,
    copied bigint NOT NULL,
    expired bigint NOT NULL,
    trimmed bigint NOT NULL,
    superseded bigint NOT NULL,
    quarantined bigint NOT NULL,
    unaccounted bigint NOT NULL GENERATED ALWAYS AS (
        rows_seen - (copied + expired + trimmed + superseded + quarantined)
    ) STORED, -- anything but 0 is a failed migration
    sessions_seen bigint NOT NULL,
    sessions_copied bigint NOT NULL,
    differences bigint NOT NULL,
    digest text NOT NULL,
    verified_at_ms bigint NOT NULL,
    CONSTRAINT ledger_pkey PRIMARY KEY (plan_id, cohort),
    CONSTRAINT ledger_plan_id_fkey FOREIGN KEY (plan_id) REFERENCES queuekeeper.plans (plan_id) ON DELETE CASCADE
);
