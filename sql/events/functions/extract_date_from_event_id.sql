-- Return the instant of an id.
CREATE FUNCTION pgmb.extract_date_from_event_id(id pgmb.event_id)
RETURNS timestamptz
LANGUAGE sql
IMMUTABLE
STRICT
PARALLEL SAFE
AS $$
    SELECT 'epoch'::timestamptz + ('x' || lpad(substr(id, 3, 13), 16, '0'))::bit(64)::bigint * interval '1 microsecond'
$$;
