-- Return the number of bytes by which an event counts in a poll, without reading values that are stored out of line.
-- The unpacked size of compressed bytes is not known: 12 times is more than usual, and even with 255 times, which is
-- the most possible, the 40 MB of a poll stay below the gigabyte that a value may have.
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
