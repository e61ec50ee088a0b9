-- One row for each poll that found events: which, in the order in which consumers get them.
-- The id ends in nine zeros; with the position of an event in their place it is the cursor that stands behind it.
CREATE TABLE pgmb.dispatches (
    id pgmb.event_id NOT NULL,
    event_ids pgmb.event_id[] NOT NULL,
    event_count int NOT NULL,
    first_event_id pgmb.event_id NOT NULL, -- the oldest
    dispatched_at timestamptz NOT NULL,
    CONSTRAINT dispatches_pkey PRIMARY KEY (id)
) PARTITION BY RANGE (id);

-- Packing the ids would take longer than all else that a poll does for plain subscriptions.
ALTER TABLE pgmb.dispatches ALTER COLUMN event_ids SET STORAGE EXTERNAL;
