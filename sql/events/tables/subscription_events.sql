-- What each subscription gets of a dispatch: one row for both, whose id is the dispatch's.
CREATE TABLE pgmb.subscription_events (
    id pgmb.event_id NOT NULL,
    group_id pgmb.group_id NOT NULL,
    subscription_id pgmb.subscription_id NOT NULL,
    positions int[], -- in dispatches.event_ids, rising; null: all; all of them listed: nobody else gets any
    match_count int NOT NULL,
    CONSTRAINT subscription_events_pkey PRIMARY KEY (group_id, id, subscription_id)
) PARTITION BY RANGE (id);
