-- Events that a handler has given up, each with its own copy, which retention does not remove.
CREATE TABLE pgmb.dead_letters (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event_id pgmb.event_id NOT NULL,
    topic varchar(255) NOT NULL,
    payload jsonb NOT NULL,
    metadata jsonb,
    group_id pgmb.group_id, -- null when the subscription was gone by then
    subscription_id pgmb.subscription_id NOT NULL,
    handler text NOT NULL,
    reason text NOT NULL,
    attempts int NOT NULL CHECK (attempts > 0),
    died_at timestamptz NOT NULL DEFAULT now(),
    replayed_at timestamptz,
    UNIQUE (subscription_id, handler, event_id)
);

CREATE INDEX dead_letters_died_at_idx ON pgmb.dead_letters (died_at) WHERE replayed_at IS NULL;
