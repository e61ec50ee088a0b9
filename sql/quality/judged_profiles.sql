-- Find the profiles of Redis that a quality run judged.
-- params: quality_run_id; null for the newest
-- rows: at most one: (quality_run_id, profile_ids, cohort_count, session_limit, default_ttl_s, is_forgotten);
-- is_forgotten: rows of queues that it rests on have been dropped since
-- index: quality_runs_pkey, profiles_pkey, queue_profiles_pkey
SELECT
    run.quality_run_id,
    array_agg(profile.profile_id ORDER BY profile.profile_id) AS profile_ids,
    max(profile.cohort_count) AS cohort_count,
    max(profile.session_limit) AS session_limit,
    max(profile.default_ttl_s) AS default_ttl_s,
    bool_or(coalesce(profile.queues > 0, FALSE) AND NOT EXISTS (
        SELECT FROM queuekeeper.queue_profiles
        WHERE queue_profiles.profile_id = profile.profile_id
    )) AS is_forgotten
FROM queuekeeper.quality_runs AS run
INNER JOIN queuekeeper.profiles AS profile ON profile.profile_id = any(run.profile_ids)
WHERE
    profile.store = 'redis'
    AND (%(quality_run_id)s::text IS NULL OR run.quality_run_id = %(quality_run_id)s)
GROUP BY run.quality_run_id
ORDER BY max(run.started_at) DESC
LIMIT 1
