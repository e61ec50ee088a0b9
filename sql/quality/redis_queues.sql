-- Rows of the suite of sessions in Redis: the queues of a profile, and whether they share a hash tag or are on a
-- cluster.
-- params: quality_run_id, redis_profile_id
-- rows: all columns of queue_profiles, then (is_clustered, shares_tag)
-- index: queue_profiles_pkey
WITH tags AS (
    -- What stands before a brace in an id is its whole tag.
    SELECT
        split_part(client_id, '}', 1) AS tag,
        count(*) AS clients
    FROM queuekeeper.queue_profiles
    WHERE profile_id = %(redis_profile_id)s AND position('}' IN client_id) > 1
    GROUP BY tag
),

servers AS (
    -- More than one server, or one that said so.
    SELECT
        min(queues.shard) <> max(queues.shard)
        OR coalesce((
            SELECT bool_or(cast(server.fact ->> 'is_clustered' AS boolean))
            FROM queuekeeper.quality_runs AS runs
            CROSS JOIN jsonb_array_elements(runs.numbers -> 'servers') AS server (fact)
            WHERE runs.quality_run_id = %(quality_run_id)s
        ), FALSE) AS are_clustered
    FROM queuekeeper.queue_profiles AS queues
    WHERE queues.profile_id = %(redis_profile_id)s
)

SELECT
    queues.*, -- noqa: AM04
    cast(servers.are_clustered AS int) AS is_clustered,
    cast(coalesce(tags.clients > 1 OR tags.tag = queues.client_id, FALSE) AS int) AS shares_tag
FROM queuekeeper.queue_profiles AS queues
CROSS JOIN servers
LEFT JOIN tags ON split_part(queues.client_id, '}', 1) = tags.tag
WHERE queues.profile_id = %(redis_profile_id)s
