-- Return the sum of an instant and an interval, for an index. Days and months count in UTC, whoever asks.
CREATE FUNCTION pgmb.add_interval_imm(tstz timestamptz, itvl interval)
RETURNS timestamptz
LANGUAGE sql
IMMUTABLE
PARALLEL SAFE
AS $$
    SELECT (tstz AT TIME ZONE 'UTC' + itvl) AT TIME ZONE 'UTC'
$$;
