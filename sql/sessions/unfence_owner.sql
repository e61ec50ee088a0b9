-- Let everybody write to a session again that a driver has fenced; its owner stays.
-- params: client_id, driver, epoch
-- rows: one when it was fenced: (client_id, owner, epoch, null, mirrored)
-- index: session_owners_pkey
UPDATE queuekeeper.session_owners AS known
SET
    state = 'settled',
    epoch = known.epoch + 1,
    fenced_until = NULL
WHERE
    known.client_id = %(client_id)s
    AND known.state = 'fenced'
    AND known.driver = %(driver)s
    AND known.epoch = %(epoch)s
RETURNING known.client_id, known.owner, known.epoch, NULL::bigint AS fenced_until_ms, known.mirrored
