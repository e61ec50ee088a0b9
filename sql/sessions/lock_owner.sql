-- Hold the row of a session's owner until the transaction ends, alone.
-- params: client_id, driver, epoch; driver and epoch: null for whatever it has
-- rows: at most one: (client_id, owner, epoch, end of its fence in ms or null, mirrored)
-- index: session_owners_pkey
SELECT
    client_id,
    owner,
    epoch,
    (extract(EPOCH FROM fenced_until) * 1000)::bigint AS fenced_until_ms,
    mirrored
FROM queuekeeper.session_owners
WHERE
    client_id = %(client_id)s
    AND (%(driver)s::bigint IS NULL OR driver = %(driver)s::bigint)
    AND (%(epoch)s::bigint IS NULL OR epoch = %(epoch)s::bigint)
FOR UPDATE
