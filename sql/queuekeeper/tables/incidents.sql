-- Findings of one cause over runs: a check that does not hold at one place. Its owner is in known_issues.
CREATE TABLE queuekeeper.incidents (
    incident_id bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    check_id text NOT NULL,
    place text NOT NULL, -- servers and prefix of keys
    severity text NOT NULL, -- of the last finding
    status text NOT NULL, -- likewise: failed, or known where all that it found was known
    unexpected_count bigint NOT NULL, -- likewise: queues that break the check
    first_seen_at timestamptz NOT NULL,
    first_run_id text NOT NULL,
    last_seen_at timestamptz NOT NULL,
    last_run_id text NOT NULL,
    cohort_count int NOT NULL,
    cohorts int[] NOT NULL, -- in which it was found, and which no run has found in order since
    sample_percent int NOT NULL, -- of the slots that the runs had read which found it
    closed_at timestamptz,
    closed_run_id text, -- run that found the last of its cohorts in order
    closed_by text, -- person who closed it instead of a run
    closed_reason text, -- why that person closed it
    CONSTRAINT incidents_pkey PRIMARY KEY (incident_id),
    CONSTRAINT incidents_status_check CHECK (status IN ('failed', 'known')),
    CONSTRAINT incidents_closed_check CHECK ((closed_at IS NULL) = (closed_run_id IS NULL AND closed_by IS NULL)),
    CONSTRAINT incidents_reason_check CHECK ((closed_by IS NULL) = (closed_reason IS NULL))
);

-- Serves the statements note_incident and clear_incident.
CREATE UNIQUE INDEX incidents_open_key ON queuekeeper.incidents (check_id, place)
WHERE closed_at IS NULL;
