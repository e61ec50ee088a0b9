-- Return a number for the end of an id. It is not random but counted: of two random ones of 28 bits for the same
-- instant half a million pairs in a billion are equal, and an insert fails.
CREATE FUNCTION pgmb.create_random_bigint()
RETURNS bigint
LANGUAGE sql
AS $$
    SELECT nextval('pgmb.event_numbers')
$$;
