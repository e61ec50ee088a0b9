-- Failures that have an owner until a day: they are shown, and do not fail a run.
CREATE TABLE queuekeeper.known_issues (
    known_issue_id bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    check_id text NOT NULL,
    client_hash text, -- null: all queues
    owner text NOT NULL,
    reason text NOT NULL,
    ends_on date NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    place text, -- servers and prefix of keys; null: everywhere
    CONSTRAINT known_issues_pkey PRIMARY KEY (known_issue_id)
);
