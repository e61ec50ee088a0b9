-- Progress of dispatching: one row, written in the transaction that dispatches, so that a crash cannot separate them.
CREATE TABLE pgmb.dispatch_state (
    only_row boolean PRIMARY KEY DEFAULT TRUE CHECK (only_row),
    system_identifier bigint, -- of the server whose transaction ids stand here and in the log; null: not known
    dispatched pg_snapshot NOT NULL, -- events of transactions visible in it are dispatched
    open_window pg_snapshot, -- the snapshot whose events are being dispatched, when they are more than one chunk
    window_transaction_id xid8, -- last event dispatched of the window
    window_event_id pgmb.event_id,
    last_dispatch_id pgmb.event_id NOT NULL,
    polled_at timestamptz NOT NULL -- heartbeat, about once a second
) WITH (fillfactor = 10);
