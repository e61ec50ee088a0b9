-- Hold sessions for writing until the transaction ends. This is the first statement of every write, before its
-- snapshots. If one session must not be written, it fails with the SQLSTATE of the first; the detail lists each: [id,
-- SQLSTATE].
CREATE FUNCTION queuekeeper.hold_owners(client_ids text[], epochs bigint[])
RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    first record;
    every jsonb;
BEGIN
    SELECT
        min(refused.code) FILTER (WHERE refused.place = 1) AS code,
        min(refused.why) FILTER (WHERE refused.place = 1) AS why,
        jsonb_agg(jsonb_build_array(refused.session, refused.code) ORDER BY refused.place) AS every
    INTO first
    FROM (
        SELECT session, code, why, row_number() OVER () AS place
        FROM queuekeeper.refused_owners(client_ids, epochs)
    ) AS refused;
    IF first.code IS NOT NULL THEN
        RAISE EXCEPTION '%', first.why
        USING
            ERRCODE = first.code,
            DETAIL = first.every::text,
            HINT = CASE first.code
                WHEN 'QK001' THEN 'Write to the other store.'
                WHEN 'QK002' THEN 'Repeat the transaction in a moment.'
                ELSE 'Look up who owns the session.'
            END;
    END IF;
END;
$$;
