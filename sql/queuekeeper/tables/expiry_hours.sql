-- When the messages of a profile expire: the timeline of memory that frees itself.
-- needs: profiles
CREATE TABLE queuekeeper.expiry_hours (
    profile_id text NOT NULL,
    hour_ms bigint NOT NULL, -- start of the hour; 0: no expiry
    messages bigint NOT NULL,
    payload_bytes bigint NOT NULL,
    CONSTRAINT expiry_hours_pkey PRIMARY KEY (profile_id, hour_ms),
    CONSTRAINT expiry_hours_profile_id_fkey FOREIGN KEY (profile_id)
    REFERENCES queuekeeper.profiles (profile_id) ON DELETE CASCADE
);
