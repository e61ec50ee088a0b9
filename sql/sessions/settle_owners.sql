-- Make the missing rows of armed cohorts' clients, lift fences whose time is over, and hold the rows until the
-- transaction ends, for a driver alone.
-- params: client_ids
-- rows: one: (sessions that are not to be written by the caller)
-- index: session_owners_pkey, online_cohorts_pkey
SELECT count(*) AS refused
FROM queuekeeper.refused_owners(%(client_ids)s::text[], NULL)
