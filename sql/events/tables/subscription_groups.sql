-- How far each group has read.
-- needs: create_group_cursor
CREATE TABLE pgmb.subscription_groups (
    id pgmb.group_id PRIMARY KEY,
    created_at timestamptz DEFAULT now(),
    last_read_event_id pgmb.event_id NOT NULL DEFAULT pgmb.create_group_cursor()
);
