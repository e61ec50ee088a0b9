-- An event that a group has not read yet, where it stands, and whom it is for.
CREATE TYPE pgmb.pending_event AS (
    cursor text,
    event_id text,
    subscription_ids text []
);
