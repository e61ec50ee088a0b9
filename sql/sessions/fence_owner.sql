-- Have nobody write to a session for a while but its driver.
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
    AND NOT EXISTS (
        SELECT 1 AS one
        FROM queuekeeper.online_cohorts AS cohort
        WHERE
            cohort.state NOT IN ('planned', 'committed')
            AND known.slot BETWEEN cohort.slot_first AND cohort.slot_last
            -- Somebody else has taken the cohort over.
            AND cohort.driver <> %(driver)s
    )
RETURNING
    known.client_id,
    known.owner,
    known.epoch,
    (extract(EPOCH FROM known.fenced_until) * 1000)::bigint AS fenced_until_ms,
    known.mirrored
