-- Give a table of the broker's partitions ahead, then drop what is expired, all in the caller's transaction. Dispatches
-- belong to subscription_events. maintain_events_table does the same for all tables, in small transactions and with
-- patience: prefer it.
CREATE FUNCTION pgmb.maintain_append_only_table(tbl regclass, current_ts timestamptz DEFAULT now())
RETURNS void
LANGUAGE plpgsql
SET search_path TO pgmb, pg_temp
AS $$
DECLARE
    patience CONSTANT text := current_setting('lock_timeout');
    step text;
    each_table regclass;
BEGIN
    PERFORM check_table(tbl);
    FOREACH step IN ARRAY ARRAY['extend', 'drop'] LOOP
        FOREACH each_table IN ARRAY ARRAY[tbl] || CASE
            WHEN tbl = 'subscription_events'::regclass THEN ARRAY['dispatches'::regclass]
        END LOOP
            WHILE maintain_step(step, each_table, current_ts) LOOP
                NULL;
            END LOOP;
        END LOOP;
    END LOOP;
    PERFORM set_config('lock_timeout', patience, TRUE);
END
$$;
