-- Return the keys of a whose values differ from those of b, or NULL when none does. A missing key is the same as a key
-- with the value null. A key of b that a does not have is null in the result, so that the result applied to b gives a.
CREATE FUNCTION pgmb.jsonb_diff(a jsonb, b jsonb)
RETURNS jsonb
LANGUAGE sql
IMMUTABLE
STRICT
PARALLEL SAFE
AS $$
    SELECT jsonb_object_agg(key, coalesce(a -> key, 'null'))
    FROM jsonb_object_keys(a || b) AS changed(key)
    WHERE coalesce(a -> key, 'null') <> coalesce(b -> key, 'null')
$$;
