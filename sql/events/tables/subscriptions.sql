-- Subscriptions: an event e reaches subscription s when conditions_sql holds for them. Equal subscriptions of a group
-- are one, by identity, in which lengths separate texts that only look equal when joined.
-- needs: subscription_groups, create_subscription_id, add_interval_imm
CREATE TABLE pgmb.subscriptions (
    id pgmb.subscription_id PRIMARY KEY DEFAULT pgmb.create_subscription_id(),
    group_id pgmb.group_id NOT NULL REFERENCES pgmb.subscription_groups (id) ON DELETE RESTRICT,
    conditions_sql text NOT NULL DEFAULT 'TRUE',
    params jsonb NOT NULL DEFAULT '{}' CONSTRAINT params_must_be_a_json_object CHECK (jsonb_typeof(params) = 'object'),
    identity uuid GENERATED ALWAYS AS (
        md5(
            length(group_id)::text || ':' || group_id::text || length(conditions_sql)::text || ':' || conditions_sql
            || params::text
        )::uuid
    ) STORED UNIQUE,
    condition_key uuid GENERATED ALWAYS AS (md5(conditions_sql)::uuid) STORED,
    created_at timestamptz NOT NULL DEFAULT now(),
    last_active_at timestamptz NOT NULL DEFAULT now(),
    expiry_interval interval, -- life after last_active_at; null: for ever
    quarantined_at timestamptz, -- since when the condition is not evaluated, because it failed
    quarantine_reason text,
    quarantine_dispatch_id pgmb.event_id, -- the last dispatch before that
    CONSTRAINT subscriptions_quarantine_check CHECK (
        (quarantined_at IS NULL) = (quarantine_reason IS NULL)
        AND (quarantined_at IS NULL) = (quarantine_dispatch_id IS NULL)
    )
);

-- Polls walk from condition to condition by it, however many subscriptions share one.
CREATE INDEX subscriptions_condition_key_idx ON pgmb.subscriptions (condition_key, id) WHERE quarantined_at IS NULL;

-- Without fastupdate subscribing is slower and the many lookups of a poll are not.
CREATE INDEX subscriptions_params_idx ON pgmb.subscriptions USING gin (params jsonb_path_ops) WITH (fastupdate = FALSE);

CREATE INDEX subscriptions_expiry_idx ON pgmb.subscriptions (
    group_id, pgmb.add_interval_imm(last_active_at, expiry_interval)
) WHERE expiry_interval IS NOT NULL;
