-- List entries of the audit about the subjects of a run of Airflow, from the time of the run on, the latest first.
-- params: dag_id, run_id, maximum
-- rows: (seq, at, actor, action, subject, report_hash, effect as text, previous_hash, hash)
-- index: audit_runs_pkey, audit_subject_idx
SELECT
    audit.seq,
    audit.at,
    audit.actor,
    audit.action,
    audit.subject,
    audit.report_hash,
    audit.effect::text,
    audit.previous_hash,
    audit.hash
FROM queuekeeper.audit_runs
INNER JOIN queuekeeper.audit ON audit_runs.subject = audit.subject
WHERE
    audit_runs.dag_id = %(dag_id)s
    AND audit_runs.run_id = %(run_id)s
    AND audit.at >= audit_runs.noted_at
ORDER BY audit.seq DESC
LIMIT %(maximum)s
