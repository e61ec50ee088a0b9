-- Create partitions of the broker's tables ahead, then drop expired ones; each step in its own transaction. Other
-- sessions wait for it at most maintenance_lock_timeout: it gives way and tries again, maintenance_attempts times.
-- Steps that could not be done for this reason are reported at the end, after everything else is done.
CREATE PROCEDURE pgmb.maintain_events_table(current_ts timestamptz DEFAULT now())
LANGUAGE plpgsql
AS $$
DECLARE
    steps CONSTANT text[] := ARRAY[
        ['guard', 'events'], ['validate', 'events'],
        ['extend', 'events'], ['extend', 'dispatches'], ['extend', 'subscription_events'],
        ['drop', 'events'], ['drop', 'dispatches'], ['drop', 'subscription_events']
    ];
    attempts CONSTANT int := pgmb.get_config_value('maintenance_attempts')::int;
    step text[];
    attempt int;
    more boolean;
    blocked boolean;
    failures text[] := '{}';
BEGIN
    FOREACH step SLICE 1 IN ARRAY steps LOOP
        attempt := 1;
        LOOP
            BEGIN
                more := pgmb.maintain_step(step[1], ('pgmb.' || step[2])::regclass, current_ts);
                blocked := FALSE;
            EXCEPTION
                WHEN lock_not_available OR deadlock_detected THEN
                    blocked := TRUE;
            END;
            COMMIT;
            EXIT WHEN NOT blocked AND NOT more;
            IF blocked THEN
                IF attempt = attempts THEN
                    failures := failures || format(
                        '%s pgmb.%s (blocked by pid %s)', step[1], step[2], (
                            SELECT coalesce(string_agg(DISTINCT l.pid::text, ', '), 'unknown')
                            FROM pg_locks AS l
                            WHERE
                                l.relation = ('pgmb.' || step[2])::regclass
                                AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
                                AND l.granted
                                AND l.pid <> pg_backend_pid()
                        )
                    );
                    EXIT;
                END IF;
                attempt := attempt + 1;
                -- Sessions that waited meanwhile go first.
                PERFORM pg_sleep(0.05 + random() * 0.2);
            END IF;
        END LOOP;
    END LOOP;
    IF cardinality(failures) > 0 THEN
        RAISE EXCEPTION 'not done, as other transactions stayed open: %', array_to_string(failures, '; ')
            USING ERRCODE = 'lock_not_available', HINT = 'End them, then CALL pgmb.maintain_events_table() again.';
    END IF;
END
$$;
