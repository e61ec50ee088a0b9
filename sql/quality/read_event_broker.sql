-- Read the state of dispatching.
-- params: none
-- rows: (stalled_s, is_foreign); stalled_s since the last poll, null while nobody subscribes; is_foreign is 1 when the
-- record of what is dispatched comes from another server
-- index: none, one row
SELECT
    cast(
        CASE
            WHEN EXISTS (SELECT FROM pgmb.subscriptions)
                THEN extract(EPOCH FROM clock_timestamp() - state.polled_at)
        END AS double precision
    ) AS stalled_s,
    cast(pg_snapshot_xmax(pg_current_snapshot()) < pg_snapshot_xmin(state.dispatched) AS int) AS is_foreign
FROM pgmb.dispatch_state AS state
