-- Successful maintenance of partitions, and how far the data had come: the rate of keys that no clock moves.
CREATE TABLE queuekeeper.partition_observations (
    table_name text NOT NULL, -- schema.name
    observed_at_ms bigint NOT NULL,
    highest_key text, -- null: the table was empty
    CONSTRAINT partition_observations_pkey PRIMARY KEY (table_name, observed_at_ms)
);
