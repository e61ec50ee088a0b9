-- Return whether a source has saved a batch in a session.
-- params: client_id, source
-- rows: one: (whether)
-- index: session_sources_pkey
SELECT count(*) > 0 AS has_saved
FROM queuekeeper.session_sources
WHERE client_id = %(client_id)s::text AND source = %(source)s::text
