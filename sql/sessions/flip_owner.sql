-- Make a store the owner of a session that its driver has fenced, unless the fence has ended.
-- params: client_id, driver, epoch, owner, mirrored
-- rows: one when it was given: (client_id, owner, epoch, null, mirrored)
-- index: session_owners_pkey
UPDATE queuekeeper.session_owners AS known
SET
    owner = %(owner)s,
    state = 'settled',
    epoch = known.epoch + 1,
    fenced_until = NULL,
    mirrored = %(mirrored)s
WHERE
    known.client_id = %(client_id)s
    AND known.state = 'fenced'
    AND known.driver = %(driver)s
    AND known.epoch = %(epoch)s
    AND clock_timestamp() < known.fenced_until
    -- include: kept_driver
RETURNING known.client_id, known.owner, known.epoch, NULL::bigint AS fenced_until_ms, known.mirrored
