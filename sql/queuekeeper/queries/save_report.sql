-- Remember where a report was written.
-- params: plan_id, html_path, json_path, sha256
-- rows: one: (report_id)
-- index: none
INSERT INTO queuekeeper.reports (plan_id, html_path, json_path, sha256)
VALUES (%(plan_id)s, %(html_path)s, %(json_path)s, %(sha256)s)
RETURNING report_id
