-- Tell whether a quarantined row is open or replayed.
-- params: quarantine_id
-- rows: at most one: (status)
-- index: quarantine_pkey
SELECT status
FROM queuekeeper.quarantine
WHERE quarantine_id = %(quarantine_id)s
