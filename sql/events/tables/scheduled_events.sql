-- Events due later than the partitions reach, or given to schedule_event. A poll publishes them when they are due.
CREATE TABLE pgmb.scheduled_events (
    id pgmb.event_id PRIMARY KEY,
    due_at timestamptz NOT NULL,
    topic varchar(255) NOT NULL,
    payload jsonb NOT NULL,
    metadata jsonb,
    subscription_id pgmb.subscription_id
);

CREATE INDEX scheduled_events_due_at_idx ON pgmb.scheduled_events (due_at, id);
