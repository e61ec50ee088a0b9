-- Columns of the owner of a session, between the client and whether it is mirrored.
owner,
epoch,
(extract(EPOCH FROM fenced_until) * 1000)::bigint AS fenced_until_ms,
