-- Return the id of the dispatch after another one: an id of this moment, or the next one if the clock has gone back.
-- It is also after the cursor of a group that was created or set at an instant that the clock has not reached again.
CREATE FUNCTION pgmb.next_dispatch_id(last_dispatch_id pgmb.event_id)
RETURNS pgmb.event_id
LANGUAGE sql
SET search_path TO pgmb, pg_temp
AS $$
    SELECT greatest(
        this_moment.id::text,
        create_event_id(extract_date_from_event_id(taken.id) + interval '1 microsecond', 0)::text
    )
    FROM (SELECT create_event_id(clock_timestamp(), 0) AS id OFFSET 0) AS this_moment
    CROSS JOIN LATERAL (
        SELECT greatest(
            last_dispatch_id::text,
            (
                SELECT max(g.last_read_event_id)
                FROM subscription_groups AS g
                -- Few are that far: looking at the form of thousands would take longer than the rest of a poll.
                -- The next id after one from 2103 on might not fit any more, and no clock has made it.
                WHERE
                    g.last_read_event_id >= this_moment.id
                    AND g.last_read_event_id ~ '^pm[0-9a-e][0-9a-f]{21}$'
            )
        )::event_id AS id
    ) AS taken
$$;
