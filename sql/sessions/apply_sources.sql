-- Record the batches that sources have saved in another store, whose packet ids are not known here; first_serial -1
-- marks them, so that a repeated batch is recognised.
-- params: client_id, sources, offsets
-- rows: none
-- index: session_sources_pkey
INSERT INTO queuekeeper.session_sources AS batch (client_id, source, batch_offset, first_serial, packet_ids)
SELECT
    %(client_id)s::text AS client_id,
    given.source,
    given.batch_offset,
    -1 AS first_serial,
    '{}' AS packet_ids
FROM unnest(%(sources)b::text[], %(offsets)b::bigint[]) AS given (source, batch_offset)
ORDER BY given.source
ON CONFLICT (client_id, source) DO UPDATE
    SET
        batch_offset = excluded.batch_offset,
        first_serial = excluded.first_serial,
        packet_ids = excluded.packet_ids
    -- What is known of this very batch still holds.
    WHERE batch.batch_offset <> excluded.batch_offset
