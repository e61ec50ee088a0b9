-- Return the matches of a condition that has failed, for those of its subscriptions that do not fail themselves; the
-- others are quarantined, with the error and the first event that causes it.
-- Halves what fails until single subscriptions are left. When many have failed and none has not, the condition is at
-- fault, and the rest is quarantined as it is: thousands may share it.
CREATE FUNCTION pgmb.quarantine_failing(
    condition text, key uuid, batch pgmb.events[], batch_positions int[]
)
RETURNS pgmb.condition_match[]
LANGUAGE plpgsql
SET search_path TO pgmb, pg_temp
AS $$
DECLARE
    enough CONSTANT int := 8;
    ids CONSTANT varchar[] := ARRAY(
        SELECT s.id FROM subscriptions AS s
        WHERE s.condition_key = key AND s.quarantined_at IS NULL
        ORDER BY s.id
    );
    stretches int[] := ARRAY[1, cardinality(ids)]; -- pairs of first and last, the next one at the end
    first_at int;
    last_at int;
    middle int;
    good int;
    bad int;
    failures int := 0;
    matched condition_match[];
    outcome record;
    reason text;
BEGIN
    WHILE cardinality(stretches) > 0 LOOP
        last_at := stretches[cardinality(stretches)];
        first_at := stretches[cardinality(stretches) - 1];
        stretches := trim_array(stretches, 2);
        CONTINUE WHEN first_at > last_at;
        IF failures >= enough AND matched IS NULL THEN
            PERFORM quarantine_subscription(id, reason) FROM unnest(ids[first_at:last_at]) AS u(id);
            CONTINUE;
        END IF;
        SELECT m.matches, m.failure
        INTO outcome
        FROM match_condition(condition, key, ids[first_at:last_at], batch, batch_positions) AS m;
        IF outcome.failure IS NULL THEN
            matched := coalesce(matched, '{}') || outcome.matches;
        ELSIF first_at < last_at THEN
            middle := (first_at + last_at) / 2;
            stretches := stretches || ARRAY[middle + 1, last_at, first_at, middle];
        ELSE
            -- The shortest beginning of the batch that fails ends in the event that does.
            good := 0;
            bad := cardinality(batch);
            WHILE bad - good > 1 LOOP
                middle := (good + bad) / 2;
                IF (
                    SELECT m.failure IS NULL
                    FROM match_condition(
                        condition, key, ids[first_at:first_at], batch[:middle], batch_positions[:middle]
                    ) AS m
                ) THEN
                    good := middle;
                ELSE
                    bad := middle;
                END IF;
            END LOOP;
            failures := failures + 1;
            reason := concat('event ', batch[bad].id, ': ', outcome.failure);
            PERFORM quarantine_subscription(ids[first_at], reason);
        END IF;
    END LOOP;
    RETURN matched;
END
$$;
