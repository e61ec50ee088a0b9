-- The events of one dispatch that a subscription's condition holds for.
CREATE TYPE pgmb.condition_match AS (
    group_id text,
    subscription_id text,
    positions int []
);
