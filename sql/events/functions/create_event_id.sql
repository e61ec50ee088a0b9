-- Return the id of an instant and a number, of which 36 bits are used. Ids of one instant sort by their numbers.
-- An instant before 1970 counts as the beginning of 1970, so no id is smaller.
CREATE FUNCTION pgmb.create_event_id(ts timestamptz, rand bigint)
RETURNS pgmb.event_id
LANGUAGE sql
IMMUTABLE
STRICT
PARALLEL SAFE
AS $$
    SELECT (
        'pm' || lpad(to_hex(greatest(extract(EPOCH FROM ts) * 1000000, 0)::bigint), 13, '0')
        || lpad(to_hex(rand & 68719476735), 9, '0')
    )::pgmb.event_id
$$;
