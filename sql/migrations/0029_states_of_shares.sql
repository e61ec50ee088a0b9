-- The state of a run follows from those of its shares; nobody knows how a share of before has ended that is not done.
-- changes: maintenance_progress
ALTER TABLE queuekeeper.maintenance_progress
ADD COLUMN state text NOT NULL DEFAULT 'running',
ADD CONSTRAINT maintenance_progress_state_check CHECK (state IN ('running', 'stopped', 'failed'));
