-- Return how many bytes an event is reckoned at when a poll takes its share, without reading what is stored apart.
-- Nobody knows how large packed bytes become: 12 times is more than usual, and even were it 255 times, the most that
-- there can be, the 40 MB of a poll stay below the gigabyte that a value may have.
CREATE FUNCTION pgmb.event_weight(payload jsonb, metadata jsonb)
RETURNS bigint
LANGUAGE sql
STABLE
PARALLEL SAFE
AS $$
    SELECT
        pg_column_size(payload)::bigint * CASE WHEN pg_column_compression(payload) IS NULL THEN 1 ELSE 12 END
        + coalesce(
            pg_column_size(metadata)::bigint * CASE WHEN pg_column_compression(metadata) IS NULL THEN 1 ELSE 12 END, 0
        )
        + 100
$$;
