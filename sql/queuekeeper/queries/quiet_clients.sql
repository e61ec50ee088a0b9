-- Return the clients of a range of slots that are PostgreSQL's, those first that were not written to for longest.
-- params: slot_first, slot_last
-- rows: (client_id)
-- index: session_owners_slot_idx, device_session_ctx_pkey
SELECT owners.client_id
FROM queuekeeper.session_owners AS owners
LEFT JOIN device_session_ctx AS ctx ON owners.client_id = ctx.client_id
WHERE
    owners.slot BETWEEN %(slot_first)s AND %(slot_last)s
    AND owners.owner = 'postgres'
ORDER BY ctx.last_updated_time NULLS FIRST, owners.client_id
