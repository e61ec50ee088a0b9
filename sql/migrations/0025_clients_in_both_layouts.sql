-- A client may have a session in each layout of a Redis, of which neither knows.
ALTER TABLE queuekeeper.queue_profiles ADD COLUMN in_both_layouts int;
