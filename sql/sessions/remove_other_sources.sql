-- Delete the batches of sources that another store does not know.
-- params: client_id, sources
-- rows: none
-- index: session_sources_pkey
DELETE FROM queuekeeper.session_sources
WHERE
    client_id = %(client_id)s
    AND source <> all(%(sources)b::text[])
