-- A profile of PostgreSQL says, too, of which sessions a migration moves the counter though our own store need not.
ALTER TABLE queuekeeper.queue_profiles ADD COLUMN next_in_use int;
