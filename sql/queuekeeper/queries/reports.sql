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
ORDER BY report_id DESC
