-- Cohorts whose sessions move while devices are connected: the state of each, and its driver.
-- needs: plans
CREATE TABLE queuekeeper.online_cohorts (
    plan_id text NOT NULL,
    cohort int NOT NULL,
    slot_first int NOT NULL,
    slot_last int NOT NULL, -- included
    state text NOT NULL DEFAULT 'planned', -- in all others writers ask who owns a session: the cohort is armed
    step_at timestamptz NOT NULL DEFAULT clock_timestamp(), -- when it came into its state
    default_owner text NOT NULL DEFAULT 'postgres', -- of a client that comes for the first time
    driver bigint, -- number of the driver that may change it; null: none yet
    dirty_reason text NOT NULL DEFAULT '', -- why it has to be verified again; empty: it need not
    servers text, -- replication ids and timeline of the servers that were last worked with
    verified_at_ms bigint,
    source_owner text NOT NULL DEFAULT 'postgres', -- store from which its clients move
    CONSTRAINT online_cohorts_pkey PRIMARY KEY (plan_id, cohort),
    CONSTRAINT online_cohorts_plan_id_fkey FOREIGN KEY (plan_id) REFERENCES queuekeeper.plans (plan_id),
    CONSTRAINT online_cohorts_slots_check CHECK (0 <= slot_first AND slot_first <= slot_last AND slot_last < 16384),
    CONSTRAINT online_cohorts_state_check CHECK (
        state IN (
            'planned', 'copying', 'caught_up', 'verified', 'cutting_over', 'on_redis', 'soaking', 'committed',
            'rolling_back'
        )
    ),
    CONSTRAINT online_cohorts_default_owner_check CHECK (default_owner IN ('postgres', 'redis', 'packed')),
    CONSTRAINT online_cohorts_source_owner_check CHECK (source_owner IN ('postgres', 'redis', 'packed')),
    -- A session is on one way at a time.
    CONSTRAINT online_cohorts_slots_excl EXCLUDE USING gist (
        int4range(slot_first, slot_last, '[]') WITH &&
    ) WHERE (state NOT IN ('planned', 'committed'))
);

-- Numbers of drivers: the driver with the latest number may change a cohort.
CREATE SEQUENCE queuekeeper.online_drivers;
