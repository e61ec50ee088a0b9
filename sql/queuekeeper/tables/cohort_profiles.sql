-- Sums of a profile by cohort, for trends and boards.
-- needs: profiles
CREATE TABLE queuekeeper.cohort_profiles (
    profile_id text NOT NULL,
    cohort int NOT NULL,
    shard text NOT NULL,
    queues bigint NOT NULL,
    messages bigint NOT NULL,
    live bigint NOT NULL,
    dead bigint NOT NULL,
    payload_bytes bigint NOT NULL,
    faulty_queues bigint NOT NULL, -- queues with any fault at all
    CONSTRAINT cohort_profiles_pkey PRIMARY KEY (profile_id, cohort),
    CONSTRAINT cohort_profiles_profile_id_fkey FOREIGN KEY (profile_id)
    REFERENCES queuekeeper.profiles (profile_id) ON DELETE CASCADE
);
