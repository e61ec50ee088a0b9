-- Published events. The default of id is create_event_id_default() written out, which takes a tenth of the call's time.
-- By transaction_id a poll finds the events that became visible since the last poll; 0 marks events that it need not
-- find.
-- needs: event_numbers
CREATE TABLE pgmb.events (
    id pgmb.event_id NOT NULL DEFAULT (
        'pm' || lpad(to_hex((date_part('epoch', clock_timestamp()) * 1000000)::bigint), 13, '0')
        || lpad(to_hex(nextval('pgmb.event_numbers')), 9, '0')
    ),
    topic varchar(255) NOT NULL,
    payload jsonb NOT NULL,
    metadata jsonb,
    subscription_id pgmb.subscription_id, -- of the one subscription it is for; null: for all whose condition holds
    transaction_id xid8 NOT NULL DEFAULT pg_current_xact_id(),
    CONSTRAINT events_pkey PRIMARY KEY (id)
) PARTITION BY RANGE (id);

CREATE INDEX events_transaction_id_idx ON pgmb.events (transaction_id, id);
