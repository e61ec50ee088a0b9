-- Events that are to be dispatched again.
CREATE TABLE pgmb.due_events (
    event_id pgmb.event_id PRIMARY KEY,
    due_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE INDEX due_events_due_at_idx ON pgmb.due_events (due_at, event_id);
