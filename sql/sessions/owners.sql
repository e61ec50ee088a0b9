-- name: hold_owners
-- Hold sessions for writing until the transaction ends; it fails when one of them must not be written by the caller.
-- params: client_ids, epochs; epochs: null where the caller knows none
-- rows: one, empty
-- index: session_owners_pkey, online_cohorts_pkey
SELECT queuekeeper.hold_owners(%(client_ids)b::text[], %(epochs)b::bigint[]);

-- name: own_sessions
-- Hold sessions that PostgreSQL owns for writing until the transaction ends, and skip the others.
-- params: client_ids
-- rows: (client_id)
-- index: session_owners_pkey, online_cohorts_pkey
SELECT wanted.client_id
FROM unnest(%(client_ids)b::text[]) AS wanted (client_id)
LEFT JOIN queuekeeper.refused_owners(%(client_ids)b::text[], NULL) AS refused ON wanted.client_id = refused.session
WHERE refused.session IS NULL
ORDER BY wanted.client_id;

-- name: sessions_move
-- Return whether another store may own a session; a process that arms a cohort waits until the transaction ends.
-- params: none
-- rows: one: (whether)
-- index: none
SELECT queuekeeper.sessions_move() AS sessions_move;

-- name: set_driver
-- Set the driver that writes in this transaction.
-- params: driver
-- rows: one: (the driver)
-- index: none
SELECT set_config('queuekeeper.driver', (%(driver)s::bigint)::text, TRUE) AS driver;

-- name: settle_owners
-- Create the missing rows of armed cohorts' clients, lift fences that have ended, and hold the rows exclusively for a
-- driver until the transaction ends.
-- params: client_ids
-- rows: one: (sessions that are not to be written by the caller)
-- index: session_owners_pkey, online_cohorts_pkey
SELECT count(*) AS refused
FROM queuekeeper.refused_owners(%(client_ids)b::text[], NULL);

-- name: look_up_owners
-- Return the owners of sessions.
-- params: client_ids
-- rows: one per session that has a row: (client_id, owner, epoch, end of its fence in ms or null, mirrored)
-- index: session_owners_pkey
SELECT
    client_id,
    -- include: owner_columns
    mirrored
FROM queuekeeper.session_owners
WHERE client_id = any(%(client_ids)b::text[]);

-- name: lock_owner
-- Hold the row of a session's owner exclusively until the transaction ends.
-- params: client_id, driver, epoch; driver and epoch: null for whatever it has
-- rows: at most one: (client_id, owner, epoch, end of its fence in ms or null, mirrored)
-- index: session_owners_pkey
SELECT
    client_id,
    -- include: owner_columns
    mirrored
FROM queuekeeper.session_owners
WHERE
    client_id = %(client_id)s
    AND (%(driver)s::bigint IS NULL OR driver = %(driver)s::bigint)
    AND (%(epoch)s::bigint IS NULL OR epoch = %(epoch)s::bigint)
FOR UPDATE;

-- name: fence_owner
-- Fence a session: for a time only its driver may write to it.
-- params: client_id, owner, driver, lease_ms; owner: null for whichever it is
-- rows: one when it is fenced now: (client_id, owner, epoch, end of its fence in ms, mirrored)
-- index: session_owners_pkey
UPDATE queuekeeper.session_owners AS known
SET
    state = 'fenced',
    epoch = known.epoch + 1,
    fenced_until = clock_timestamp() + %(lease_ms)s * interval '1 millisecond',
    driver = %(driver)s
WHERE
    known.client_id = %(client_id)s
    AND known.owner = coalesce(%(owner)s::text, known.owner)
    AND (known.state = 'settled' OR known.driver = %(driver)s)
    -- include: kept_driver
RETURNING
    known.client_id,
    known.owner,
    known.epoch,
    (extract(EPOCH FROM known.fenced_until) * 1000)::bigint AS fenced_until_ms,
    known.mirrored;

-- name: unfence_owner
-- Lift the fence of a session, so that all may write again; its owner stays.
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
RETURNING known.client_id, known.owner, known.epoch, NULL::bigint AS fenced_until_ms, known.mirrored;
