-- A person may close an incident, and says why.
ALTER TABLE queuekeeper.incidents
ADD COLUMN closed_by text,
ADD COLUMN closed_reason text,
DROP CONSTRAINT incidents_closed_check,
ADD CONSTRAINT incidents_closed_check CHECK ((closed_at IS NULL) = (closed_run_id IS NULL AND closed_by IS NULL)),
ADD CONSTRAINT incidents_reason_check CHECK ((closed_by IS NULL) = (closed_reason IS NULL));
