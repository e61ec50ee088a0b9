-- Return a number for the end of an id. It is counted, not random: of random numbers of 28 bits for the same instant, a
-- few pairs in a billion are equal, and their insert would fail.
CREATE FUNCTION pgmb.create_random_bigint()
RETURNS bigint
LANGUAGE sql
AS $$
    SELECT nextval('pgmb.event_numbers')
$$;
