-- Record the batches that sources have stored in locked sessions, which must have a row in session_states.
-- params: client_ids, sources, offsets, first_serials, packet_ids, lengths; packet_ids: of all batches, one after
-- another; lengths: messages of each
-- rows: none
-- index: session_sources_pkey
INSERT INTO queuekeeper.session_sources AS batch (client_id, source, batch_offset, first_serial, packet_ids)
SELECT
    saved.client_id,
    saved.source,
    saved.batch_offset,
    saved.first_serial,
    (%(packet_ids)b::int[])[saved.upto - saved.length + 1:saved.upto] AS packet_ids
FROM (
    SELECT
        given.client_id,
        given.source,
        given.batch_offset,
        given.first_serial,
        given.length,
        sum(given.length) OVER (ORDER BY given.place) AS upto
    FROM unnest(
        %(client_ids)b::text[], %(sources)b::text[], %(offsets)b::bigint[], %(first_serials)b::bigint[],
        %(lengths)b::int[]
    ) WITH ORDINALITY AS given (client_id, source, batch_offset, first_serial, length, place)
) AS saved
ON CONFLICT (client_id, source) DO UPDATE SET
    batch_offset = excluded.batch_offset,
    first_serial = excluded.first_serial,
    packet_ids = excluded.packet_ids
