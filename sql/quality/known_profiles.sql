-- Name the profiles that began last, the newest first.
-- params: maximum, store, finished; store is null for both, finished leaves out those that are not complete
-- rows: (profile_id)
-- index: none, a row per profile
SELECT profile_id
FROM queuekeeper.profiles
WHERE
    (%(store)s::text IS NULL OR store = %(store)s)
    AND (finished_at IS NOT NULL OR NOT %(finished)s)
ORDER BY started_at DESC, profile_id ASC
LIMIT %(maximum)s
