-- Return a page of the clients of a range of slots that belong to one store.
-- params: slot_first, slot_last, owner, after_slot, after_client_id, limit
-- rows: (slot, client_id), in this order
-- index: session_owners_slot_idx
SELECT
    slot,
    client_id
FROM queuekeeper.session_owners
WHERE
    slot BETWEEN %(slot_first)s AND %(slot_last)s
    AND owner = %(owner)s
    AND (slot, client_id) > (%(after_slot)s::int, %(after_client_id)s)
ORDER BY slot, client_id
LIMIT %(limit)s
