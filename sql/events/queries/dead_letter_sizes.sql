-- Tell how many bytes the contents of dead letters are as text.
-- params: ids
-- rows: id and bytes of each that was not replayed
-- index: primary key of pgmb.dead_letters
SELECT
    d.id,
    octet_length(d.payload::text) + coalesce(octet_length(d.metadata::text), 0) AS bytes
FROM pgmb.dead_letters AS d
WHERE d.id = any(%(ids)s::bigint[]) AND d.replayed_at IS NULL
ORDER BY d.id
