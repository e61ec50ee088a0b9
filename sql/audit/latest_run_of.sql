-- Find the run of Airflow that has worked on a subject last.
-- params: subject
-- rows: at most one: (dag_id, run_id)
-- index: none, a run of Airflow notes few subjects
SELECT
    dag_id,
    run_id
FROM queuekeeper.audit_runs
WHERE subject = %(subject)s
ORDER BY noted_at DESC
LIMIT 1
