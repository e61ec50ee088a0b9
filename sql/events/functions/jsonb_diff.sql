-- Return the keys of a whose values differ from those of b, or NULL when none does.
-- A key that is absent is as good as one whose value is null; one that b has and a has not is null in the result, so
-- that who applies the result to b gets a.
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
