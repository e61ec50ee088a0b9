-- Notes of a migration with connected devices, and the cohorts that are moved first.
-- needs: plans
CREATE TABLE queuekeeper.online_control (
    plan_id text NOT NULL,
    held_back text NOT NULL DEFAULT '', -- what slows it down now, in words
    canary int[] NOT NULL DEFAULT '{}', -- cohorts that go first
    rehearsed_at timestamptz, -- when the canary had gone to Redis and back
    CONSTRAINT online_control_pkey PRIMARY KEY (plan_id),
    CONSTRAINT online_control_plan_id_fkey FOREIGN KEY (plan_id)
    REFERENCES queuekeeper.plans (plan_id) ON DELETE CASCADE
);
