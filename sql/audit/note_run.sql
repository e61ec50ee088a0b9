-- Record that a run of Airflow works on a subject of the audit; an earlier record stays as it is.
-- params: dag_id, run_id, subject
-- rows: none
-- index: none, an insert
INSERT INTO queuekeeper.audit_runs (dag_id, run_id, subject)
VALUES (%(dag_id)s, %(run_id)s, %(subject)s)
ON CONFLICT DO NOTHING
