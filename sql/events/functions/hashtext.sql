-- Return a hash of a text that is never negative.
-- It stands before pg_catalog's in the search_path of conditions, so that hashtext(e.id) % 3, by which workers share
-- events, gives 0 to 2: the original gives -2 to 2, and a third of the events match no worker.
CREATE FUNCTION pgmb.hashtext(value text)
RETURNS int
LANGUAGE sql
IMMUTABLE
STRICT
PARALLEL SAFE
AS $$
    SELECT pg_catalog.hashtext(value) & 2147483647
$$;
