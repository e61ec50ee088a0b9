-- Count the clients of each armed cohort by owner.
-- params: plan_id
-- rows: (cohort, clients of PostgreSQL, clients of Redis, clients on their way)
-- index: online_cohorts_pkey, session_owners_slot_idx
SELECT
    online.cohort,
    count(*) FILTER (WHERE owners.owner = 'postgres') AS on_postgres,
    count(*) FILTER (WHERE owners.owner = 'redis') AS on_redis,
    count(*) FILTER (WHERE owners.state = 'fenced' AND owners.fenced_until > clock_timestamp()) AS fenced
FROM queuekeeper.online_cohorts AS online
LEFT JOIN queuekeeper.session_owners AS owners ON owners.slot BETWEEN online.slot_first AND online.slot_last
WHERE online.plan_id = %(plan_id)s
GROUP BY online.cohort
ORDER BY online.cohort
