-- Let new dispatches begin behind everything that PGMB has dispatched; the instant parts past from future.
-- params: none
-- rows: one: (id behind which the new dispatches begin)
-- index: none
UPDATE pgmb.dispatch_state AS st
SET
    last_dispatch_id = greatest(
        st.last_dispatch_id::text,
        (
            SELECT
                pgmb.create_event_id(
                    pgmb.extract_date_from_event_id(max(se.id::text::pgmb.event_id)::pgmb.event_id)
                    + interval '1 microsecond',
                    0
                )::text
            FROM pgmb_original.subscription_events AS se
        )
    )
RETURNING st.last_dispatch_id
