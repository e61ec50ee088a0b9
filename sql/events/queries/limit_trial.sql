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
FROM (SELECT current_setting('statement_timeout') AS timeout) AS own
