-- name: check_condition
-- Try a condition on the latest events.
-- params: condition, max_duration_ms
-- rows: what speaks against it, or none
-- index: none
SELECT c.failure
FROM pgmb.check_condition(%(condition)s, max_duration_ms => %(max_duration_ms)s) AS c;

-- name: live_conditions
-- List the conditions that a poll evaluates.
-- params: none
-- rows: each text once
-- index: none
SELECT DISTINCT s.conditions_sql
FROM pgmb.subscriptions AS s
WHERE s.quarantined_at IS NULL
ORDER BY s.conditions_sql;

-- name: quarantine_condition
-- Evaluate a condition no more, for any of its subscriptions.
-- params: condition, reason
-- rows: id of each subscription that was not in quarantine
-- index: none
SELECT s.id
FROM pgmb.subscriptions AS s
WHERE s.conditions_sql = %(condition)s AND pgmb.quarantine_subscription(s.id, %(reason)s);

-- name: limit_trial
-- End the next statements of this transaction after so long, or sooner where the connection's own limit is shorter.
-- params: timeout_ms
-- rows: one, without meaning
-- index: none
SELECT
    set_config('pgmb.statement_timeout', own.timeout, TRUE) AS own_timeout,
    set_config(
        'statement_timeout',
        CASE
            WHEN extract(EPOCH FROM own.timeout::interval) * 1000 BETWEEN 1 AND %(timeout_ms)s THEN own.timeout
            ELSE %(timeout_ms)s::text
        END,
        TRUE
    ) AS statement_timeout
FROM (SELECT current_setting('statement_timeout') AS timeout) AS own;

-- name: end_trial
-- Give the rest of this transaction the connection's own limit again, after limit_trial.
-- params: none
-- rows: one, without meaning
-- index: none
SELECT set_config('statement_timeout', current_setting('pgmb.statement_timeout'), TRUE) AS statement_timeout;

-- name: limit_statements
-- End every statement of this session that takes longer.
-- params: timeout_ms
-- rows: one, without meaning
-- index: none
SELECT set_config('statement_timeout', %(timeout_ms)s::text, FALSE) AS statement_timeout;

-- name: limit_lock_waits
-- End every statement of this session that waits longer for a lock; without a time, wait as the server is set.
-- params: timeout_ms
-- rows: one, without meaning
-- index: none
SELECT set_config('lock_timeout', %(timeout_ms)s::text, FALSE) AS lock_timeout;
