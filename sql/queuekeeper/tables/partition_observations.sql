-- Successful maintenance of partitions with the highest key, from which the rate of keys without a clock is computed.
CREATE TABLE queuekeeper.partition_observations (
    table_name text NOT NULL, -- schema.name
    observed_at_ms bigint NOT NULL,
    highest_key text, -- null: the table was empty
    CONSTRAINT partition_observations_pkey PRIMARY KEY (table_name, observed_at_ms)
);
