-- Record that changes of a session that Redis owns are no longer written elsewhere.
-- params: client_id
-- rows: one when the session is Redis's: (client_id, owner, epoch, null, mirrored)
-- index: session_owners_pkey
UPDATE queuekeeper.session_owners AS known
SET
    -- A repeated call says the same.
    epoch = known.epoch + CASE WHEN known.mirrored THEN 1 ELSE 0 END,
    mirrored = FALSE
WHERE
    known.client_id = %(client_id)s
    AND known.owner <> 'postgres'
    AND known.state = 'settled'
RETURNING known.client_id, known.owner, known.epoch, NULL::bigint AS fenced_until_ms, known.mirrored
