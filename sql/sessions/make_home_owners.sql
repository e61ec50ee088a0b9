-- Make the missing rows of clients of no armed cohort, which a store in Redis owns.
-- params: client_ids, home
-- rows: none
-- index: session_owners_pkey
INSERT INTO queuekeeper.session_owners (client_id, slot, owner, epoch)
SELECT
    wanted.client_id,
    queuekeeper.key_slot(wanted.client_id) AS slot,
    %(home)s::text AS owner,
    -- Redis may know an epoch of an earlier migration, and follows only a greater one.
    floor(extract(EPOCH FROM clock_timestamp()) * 1000000)::bigint AS epoch
FROM unnest(%(client_ids)b::text[]) AS wanted (client_id)
-- In the order of all writers.
ORDER BY wanted.client_id
ON CONFLICT DO NOTHING
