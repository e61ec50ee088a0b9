-- Read how dispatching stands.
-- params: none
-- rows: one: (polled at, last dispatch, undispatched events, the oldest of them, scheduled events, overdue ones,
--   events to dispatch again, quarantined subscriptions, retention limit, seconds of head-room, overflow in use)
-- index: events_transaction_id_idx
SELECT
    st.polled_at,
    st.last_dispatch_id,
    st.undispatched,
    st.oldest_undispatched_id,
    st.scheduled,
    st.overdue,
    st.reenqueued,
    st.quarantined_subscriptions,
    st.retention_limit,
    extract(EPOCH FROM st.head_room)::double precision AS head_room_s,
    st.overflow_in_use
FROM pgmb.dispatch_status() AS st
