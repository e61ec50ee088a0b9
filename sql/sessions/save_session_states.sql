-- Record our state of locked sessions, and add to their counters.
-- params: client_ids, last_serials, message_bounds, delivered_serials, until_ms, trimmed, expired, refused; until_ms:
-- never brought forward; null to leave it
-- rows: none
-- index: session_states_pkey
INSERT INTO queuekeeper.session_states AS state (
    client_id, known_serial, message_bound, delivered_serial, until_ms, trimmed, expired, refused
)
SELECT
    saved.client_id,
    saved.known_serial,
    saved.message_bound,
    saved.delivered_serial,
    saved.until_ms,
    saved.trimmed,
    saved.expired,
    saved.refused
FROM
    unnest(
        %(client_ids)b::text[], %(last_serials)b::bigint[], %(message_bounds)b::int[], %(delivered_serials)b::bigint[],
        %(until_ms)b::bigint[], %(trimmed)b::bigint[], %(expired)b::bigint[], %(refused)b::bigint[]
    ) AS saved (client_id, known_serial, message_bound, delivered_serial, until_ms, trimmed, expired, refused)
ORDER BY saved.client_id
ON CONFLICT (client_id) DO UPDATE SET
    known_serial = excluded.known_serial,
    message_bound = excluded.message_bound,
    delivered_serial = greatest(state.delivered_serial, excluded.delivered_serial),
    -- Null, which means unknown, is ignored.
    until_ms = greatest(state.until_ms, excluded.until_ms),
    trimmed = state.trimmed + excluded.trimmed,
    expired = state.expired + excluded.expired,
    refused = state.refused + excluded.refused
