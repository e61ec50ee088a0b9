-- Tell who owns sessions.
-- params: client_ids
-- rows: one per session that has a row: (client_id, owner, epoch, end of its fence in ms or null, mirrored)
-- index: session_owners_pkey
SELECT
    client_id,
    owner,
    epoch,
    (extract(EPOCH FROM fenced_until) * 1000)::bigint AS fenced_until_ms,
    mirrored
FROM queuekeeper.session_owners
WHERE client_id = any(%(client_ids)s::text[])
