-- Have the server end this transaction when its driver stands still: nobody waits longer for it than for a fence.
-- params: lease_ms
-- rows: none
-- index: none
SELECT
    set_config('idle_in_transaction_session_timeout', %(lease_ms)s::text, TRUE) AS idle,
    set_config('statement_timeout', %(lease_ms)s::text, TRUE) AS statement
