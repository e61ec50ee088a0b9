-- A profile reads packed sessions, too, and a client may have a session in each layout while it moves.
ALTER TABLE queuekeeper.queue_profiles ADD COLUMN layout text NOT NULL DEFAULT 'tbmq';
ALTER TABLE queuekeeper.queue_profiles ADD COLUMN state_faults bigint;
ALTER TABLE queuekeeper.queue_profiles DROP CONSTRAINT queue_profiles_pkey;
ALTER TABLE queuekeeper.queue_profiles
ADD CONSTRAINT queue_profiles_pkey PRIMARY KEY (profile_id, client_id, layout);
