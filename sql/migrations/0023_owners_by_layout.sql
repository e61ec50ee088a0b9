-- Sessions move between the layouts of one Redis, too: packed sessions have an owner of their own.
ALTER TABLE queuekeeper.session_owners
DROP CONSTRAINT session_owners_owner_check,
ADD CONSTRAINT session_owners_owner_check CHECK (owner IN ('postgres', 'redis', 'packed'));
ALTER TABLE queuekeeper.online_cohorts ADD COLUMN source_owner text NOT NULL DEFAULT 'postgres';
ALTER TABLE queuekeeper.online_cohorts
DROP CONSTRAINT online_cohorts_default_owner_check,
ADD CONSTRAINT online_cohorts_default_owner_check CHECK (default_owner IN ('postgres', 'redis', 'packed')),
ADD CONSTRAINT online_cohorts_source_owner_check CHECK (source_owner IN ('postgres', 'redis', 'packed'));
