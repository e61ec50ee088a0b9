-- Hold those of some sessions for writing that are PostgreSQL's until the transaction ends, and pass over the others.
-- params: client_ids
-- rows: (client_id)
-- index: session_owners_pkey, online_cohorts_pkey
SELECT wanted.client_id
FROM unnest(%(client_ids)s::text[]) AS wanted (client_id)
LEFT JOIN queuekeeper.refused_owners(%(client_ids)s::text[], NULL) AS refused ON wanted.client_id = refused.session
WHERE refused.session IS NULL
ORDER BY wanted.client_id
