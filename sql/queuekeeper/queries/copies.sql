-- name: record_progress
-- Record the progress of one part of a step; a task that starts again starts from its first count.
-- params: plan_id, step, part, done, total, at_ms
-- rows: none
-- index: progress_pkey
INSERT INTO queuekeeper.progress (plan_id, step, part, done, total, updated_at_ms)
VALUES (%(plan_id)s, %(step)s, %(part)s, %(done)s, %(total)s, %(at_ms)s)
ON CONFLICT (plan_id, step, part) DO UPDATE
    SET
        done = excluded.done,
        total = excluded.total,
        updated_at_ms = excluded.updated_at_ms;

-- name: progress
-- Sum up the progress of a step; parts is null for all parts.
-- params: plan_id, step, parts
-- rows: one: (done, total, parts, updated_at_ms)
-- index: progress_pkey
SELECT
    coalesce(sum(done), 0)::bigint AS done,
    coalesce(sum(total), 0)::bigint AS total,
    count(*) AS parts,
    max(updated_at_ms) AS updated_at_ms
FROM queuekeeper.progress
WHERE
    plan_id = %(plan_id)s
    AND step = %(step)s
    AND (%(parts)b::text[] IS NULL OR part = any(%(parts)b::text[]));

-- name: record_throughput
-- Record the number of messages that were done at an instant; returns how many samples there were before.
-- params: plan_id, step, at_ms, done
-- rows: one: (samples)
-- index: throughput_pkey
INSERT INTO queuekeeper.throughput (plan_id, step, at_ms, done)
VALUES (%(plan_id)s, %(step)s, %(at_ms)s, %(done)s)
ON CONFLICT (plan_id, step, at_ms) DO UPDATE
    SET done = excluded.done
RETURNING (
    SELECT count(*)
    FROM queuekeeper.throughput AS samples
    WHERE
        samples.plan_id = %(plan_id)s
        AND samples.step = %(step)s
) AS samples;

-- name: merge_throughput
-- Leave out a sample; the next one takes over its time and messages.
-- params: plan_id, step, left_out_ms, at_ms, worked_ms, messages
-- rows: none
-- index: throughput_pkey
WITH left_out AS (
    DELETE FROM queuekeeper.throughput
    WHERE
        plan_id = %(plan_id)s
        AND step = %(step)s
        AND at_ms = %(left_out_ms)s
)

UPDATE queuekeeper.throughput
SET
    worked_ms = %(worked_ms)s,
    messages = %(messages)s
WHERE
    plan_id = %(plan_id)s
    AND step = %(step)s
    AND at_ms = %(at_ms)s;

-- name: throughput
-- Read the curve of a step from an instant on, in order of time.
-- params: plan_id, step, since_ms
-- rows: (at_ms, done, worked_ms, messages)
-- index: throughput_pkey
SELECT
    at_ms,
    done,
    worked_ms,
    messages
FROM queuekeeper.throughput
WHERE
    plan_id = %(plan_id)s
    AND step = %(step)s
    AND at_ms >= %(since_ms)s
ORDER BY at_ms;

-- name: save_copy_report
-- Store the report of one run of the copy.
-- params: plan_id, cohorts, report
-- rows: none
-- index: none
INSERT INTO queuekeeper.copy_reports (plan_id, cohorts, report)
VALUES (%(plan_id)s, %(cohorts)s, %(report)s);

-- name: copy_reports
-- Read the reports of the runs of the copy, first to last.
-- params: plan_id
-- rows: (report, cohorts)
-- index: copy_reports_plan_id_idx
SELECT
    report,
    cohorts
FROM queuekeeper.copy_reports
WHERE plan_id = %(plan_id)s
ORDER BY report_id;

-- name: copied_messages
-- Return the number of messages in Redis of each cohort whose copy has begun and not ended, by its reports, or by the
-- progress of the part in which it was killed. Parts that share a range of cohorts have parts of each of them.
-- params: plan_id
-- rows: (cohort, messages)
-- index: cohorts_pkey, copy_reports_plan_id_idx, progress_pkey
SELECT
    cohorts.cohort,
    greatest(
        (
            SELECT coalesce(sum((reports.report -> 'messages_by_cohort' ->> cohorts.cohort::text)::bigint), 0)
            FROM queuekeeper.copy_reports AS reports
            WHERE reports.plan_id = cohorts.plan_id
        ),
        (
            SELECT coalesce(max(cohorts.to_copy * parts.done / greatest(parts.total, 1)), 0)
            FROM (
                SELECT
                    split_part(progress.part, '-', 1)::int AS first,
                    split_part(progress.part, '-', 2)::int AS last,
                    sum(progress.done) AS done,
                    sum(progress.total) AS total
                FROM queuekeeper.progress
                WHERE
                    progress.plan_id = cohorts.plan_id
                    AND progress.step = 'copy'
                GROUP BY first, last
            ) AS parts
            WHERE cohorts.cohort BETWEEN parts.first AND parts.last
        )
    )::bigint AS messages
FROM queuekeeper.cohorts
WHERE
    cohorts.plan_id = %(plan_id)s
    AND cohorts.state = 'copying'
ORDER BY cohorts.cohort;

-- name: save_report
-- Record where a report was written.
-- params: plan_id, html_path, json_path, sha256
-- rows: one: (report_id)
-- index: none
INSERT INTO queuekeeper.reports (plan_id, html_path, json_path, sha256)
VALUES (%(plan_id)s, %(html_path)s, %(json_path)s, %(sha256)s)
RETURNING report_id;

-- name: reports
-- Read where reports were written, latest first.
-- params: plan_id
-- rows: (report_id, html_path, json_path, sha256, created_at)
-- index: reports_plan_id_idx
SELECT
    report_id,
    html_path,
    json_path,
    sha256,
    created_at
FROM queuekeeper.reports
WHERE plan_id = %(plan_id)s
ORDER BY report_id DESC;
