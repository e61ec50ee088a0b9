-- Record that a run has found a check in order in some cohorts; the incident closes when no cohort is left.
-- params: check_id, place, at, quality_run_id, cohort_count, cohorts, whole, sample_percent
-- rows: none
-- index: incidents_open_key
WITH looked_at AS (
    SELECT
        incident_id,
        CASE
            WHEN %(whole)s THEN '{}'::int[]
            ELSE
                array(
                    SELECT DISTINCT cohort
                    FROM
                        unnest(
                            CASE
                                WHEN cohort_count = %(cohort_count)s THEN cohorts
                                -- With another number of cohorts, their slots differ: it may be in any of them.
                                ELSE array(SELECT generate_series(0, %(cohort_count)s - 1))
                            END
                        ) AS cohort
                    WHERE cohort <> all(%(cohorts)b::int[])
                )
        END AS unseen
    FROM queuekeeper.incidents
    WHERE
        check_id = %(check_id)s
        AND place = %(place)s
        AND closed_at IS NULL
        AND last_seen_at <= %(at)s
        AND sample_percent <= %(sample_percent)s
    FOR UPDATE
)

UPDATE queuekeeper.incidents
SET
    cohort_count = %(cohort_count)s,
    cohorts = unseen,
    closed_at = CASE WHEN unseen = '{}' THEN %(at)s::timestamptz END,
    closed_run_id = CASE WHEN unseen = '{}' THEN %(quality_run_id)s END
FROM looked_at
WHERE incidents.incident_id = looked_at.incident_id
