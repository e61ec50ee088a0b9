-- Create partitions of a table of the broker ahead, then drop expired ones, all in the caller's transaction. Dispatches
-- are maintained with subscription_events. Prefer maintain_events_table, which does the same for all tables in small
-- transactions, and retries.
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
