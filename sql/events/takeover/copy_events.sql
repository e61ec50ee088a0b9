-- Take over events. Those that PGMB had yet to dispatch are marked as published by this transaction, so that the next
-- polls find them; the others as needing no finding.
-- params: redispatch_unmatched
-- rows: none
-- index: scheduled_events_pkey
INSERT INTO pgmb.events (id, topic, payload, metadata, subscription_id, transaction_id)
SELECT
    e.id,
    e.topic,
    e.payload,
    e.metadata,
    e.subscription_id,
    CASE
        WHEN EXISTS (
            SELECT FROM pgmb_original.unread_events AS u
            WHERE u.event_id = e.id
        ) THEN pg_current_xact_id()
        WHEN
            %(redispatch_unmatched)s
            AND NOT EXISTS (
                SELECT FROM pgmb_original.subscription_events AS se
                WHERE se.event_id = e.id
            )
            THEN pg_current_xact_id()
        ELSE '0'::xid8
    END AS transaction_id
FROM pgmb_original.events AS e
WHERE NOT EXISTS (
    SELECT FROM pgmb.scheduled_events AS sc
    WHERE sc.id = e.id::text::pgmb.event_id
)
