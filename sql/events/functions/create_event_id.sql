-- Return the id of an instant and a number, of which 36 bits count. Ids of one instant sort by their numbers.
-- What lies before 1970 is reckoned as its beginning: no id is smaller.
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
