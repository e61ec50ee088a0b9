-- Return what an event about a row carries without the columns that are NULL; a null inside a column of JSON stays.
CREATE FUNCTION pgmb.without_null_columns(content jsonb)
RETURNS jsonb
LANGUAGE sql
IMMUTABLE
STRICT
PARALLEL SAFE
AS $$
    SELECT
        CASE
            WHEN jsonb_typeof(content) = 'object'
                THEN (
                    SELECT coalesce(jsonb_object_agg(c.key, c.value), '{}')
                    FROM jsonb_each(content) AS c(key, value)
                    WHERE c.value <> 'null'
                )
            ELSE content
        END
$$;
