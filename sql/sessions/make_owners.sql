-- Make the missing rows of clients whose cohorts are armed.
-- params: client_ids
-- rows: one: (rows made)
-- index: online_cohorts_pkey, session_owners_pkey
WITH made AS (
    INSERT INTO queuekeeper.session_owners (client_id, slot, owner, epoch, mirrored)
    SELECT
        wanted.client_id,
        wanted.slot,
        cohort.default_owner,
        -- Redis may know an epoch of an earlier migration, and follows only a greater one.
        floor(extract(EPOCH FROM clock_timestamp()) * 1000000)::bigint AS epoch,
        cohort.default_owner <> cohort.source_owner AS mirrored
    FROM (
        SELECT
            given.client_id,
            queuekeeper.key_slot(given.client_id) AS slot
        FROM unnest(%(client_ids)b::text[]) AS given (client_id)
    ) AS wanted
    INNER JOIN queuekeeper.online_cohorts AS cohort
        ON
            cohort.state NOT IN ('planned', 'committed')
            AND wanted.slot BETWEEN cohort.slot_first AND cohort.slot_last
    -- In the order of all writers.
    ORDER BY wanted.client_id
    FOR SHARE OF cohort
    ON CONFLICT DO NOTHING
    RETURNING client_id
)

SELECT count(*) AS made
FROM made
