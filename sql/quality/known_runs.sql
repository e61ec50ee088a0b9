-- Read the quality runs that began last, the newest first.
-- params: maximum, finished, whole, same_servers_as; finished leaves out those that are still at work or were killed,
--         whole those that read a part of the queues, and same_servers_as, unless null, names a run: only those that
--         read one of the servers that it read; where it needed no profile, those by one of its suites
-- rows: (quality_run_id, mode, suites, profile_ids, verdict, numbers, started_at, finished_at)
-- index: none, a row per run
SELECT
    quality_run_id,
    -- include: quality_run_columns
    finished_at
FROM queuekeeper.quality_runs AS runs
WHERE
    (finished_at IS NOT NULL OR NOT %(finished)s)
    AND (
        NOT %(whole)s
        OR (
            mode = 'full'
            AND NOT EXISTS (
                SELECT 1
                FROM queuekeeper.profiles
                WHERE
                    profiles.profile_id = any(runs.profile_ids)
                    AND (cardinality(profiles.cohorts) < profiles.cohort_count OR profiles.sample_percent < 100)
            )
        )
    )
    AND (
        %(same_servers_as)s::text IS NULL
        OR EXISTS (
            SELECT 1
            FROM queuekeeper.quality_runs AS chosen
            WHERE
                chosen.quality_run_id = %(same_servers_as)s
                AND (
                    chosen.quality_run_id = runs.quality_run_id
                    OR (
                        cardinality(chosen.profile_ids) = 0
                        AND cardinality(runs.profile_ids) = 0
                        AND chosen.suites && runs.suites
                        AND (
                            NOT jsonb_path_exists(chosen.numbers, '$.servers[*]')
                            OR jsonb_path_query_array(chosen.numbers, '$.servers[*].address')
                            @> any(
                                SELECT theirs.address
                                FROM jsonb_path_query(runs.numbers, '$.servers[*].address') AS theirs (address)
                            )
                        )
                    )
                    OR EXISTS (
                        SELECT 1
                        FROM queuekeeper.profiles AS theirs
                        INNER JOIN queuekeeper.profiles AS ours ON theirs.target = ours.target
                        WHERE theirs.profile_id = any(runs.profile_ids) AND ours.profile_id = any(chosen.profile_ids)
                    )
                )
        )
    )
ORDER BY started_at DESC, quality_run_id DESC
LIMIT %(maximum)s
