-- Answers that stand in the audit, so that a task that reads one again adds no second entry.
CREATE TABLE queuekeeper.audit_answers (
    subject text NOT NULL, -- plan or run that was asked about
    answered_at timestamptz NOT NULL,
    action text NOT NULL,
    actor text NOT NULL,
    CONSTRAINT audit_answers_pkey PRIMARY KEY (subject, answered_at, action, actor)
);
