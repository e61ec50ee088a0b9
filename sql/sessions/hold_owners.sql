-- Hold sessions for writing until the transaction ends; it fails when one of them must not be written by the caller.
-- params: client_ids, epochs; epochs: null where the caller knows none
-- rows: one, empty
-- index: session_owners_pkey, online_cohorts_pkey
SELECT queuekeeper.hold_owners(%(client_ids)s::text[], %(epochs)s::bigint[])
