-- Numbers of the plan for each range of hash slots, and the state of the range.
-- needs: plans
CREATE TABLE queuekeeper.cohorts (
    plan_id text NOT NULL,
    cohort int NOT NULL,
    slot_first int NOT NULL,
    slot_last int NOT NULL, -- included
    shard text NOT NULL, -- host:port that served the range when the plan was made
    sessions bigint NOT NULL,
    clients bigint NOT NULL,
    messages bigint NOT NULL, -- = to_copy + expired + trimmed + quarantined
    payload_bytes bigint NOT NULL,
    to_copy bigint NOT NULL,
    expired bigint NOT NULL,
    trimmed bigint NOT NULL,
    quarantined bigint NOT NULL,
    quarantined_by_reason jsonb NOT NULL, -- session rows too
    forecast_bytes bigint NOT NULL,
    longest_queue bigint NOT NULL,
    state text NOT NULL DEFAULT 'planned',
    CONSTRAINT cohorts_pkey PRIMARY KEY (plan_id, cohort),
    CONSTRAINT cohorts_plan_id_fkey FOREIGN KEY (plan_id) REFERENCES queuekeeper.plans (plan_id) ON DELETE CASCADE,
    CONSTRAINT cohorts_state_check CHECK (state IN ('planned', 'copying', 'copied', 'verified', 'failed'))
);
