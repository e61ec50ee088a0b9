-- What was published. The default of id is create_event_id_default() written out: that costs a tenth of the call.
-- A poll finds by transaction_id what became visible since the last one; 0 marks what needs no finding.
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
