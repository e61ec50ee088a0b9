-- The type of a key, of pg_type AS key_type; of a domain, what it rests on in the end.
(
    WITH RECURSIVE rests_on AS (
        SELECT
            key_type.oid,
            key_type.typbasetype
        UNION ALL
        SELECT
            type.oid,
            type.typbasetype
        FROM rests_on
        INNER JOIN pg_type AS type ON rests_on.typbasetype = type.oid
    )

    SELECT format_type(rests_on.oid, NULL) FROM rests_on
    WHERE rests_on.typbasetype = 0
) AS key_type,
