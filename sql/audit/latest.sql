-- List entries of the audit, the latest first; null stands for any.
-- params: actor, action, subject, since, until, before_seq, maximum
-- rows: (seq, at, actor, action, subject, report_hash, effect as text, previous_hash, hash)
-- index: audit_pkey, or audit_subject_idx
SELECT
    seq,
    -- include: audit_columns
    hash
FROM queuekeeper.audit
WHERE
    (%(actor)s::text IS NULL OR actor = %(actor)s)
    AND (%(action)s::text IS NULL OR action = %(action)s)
    AND (%(subject)s::text IS NULL OR subject = %(subject)s)
    AND (%(since)s::timestamptz IS NULL OR at >= %(since)s)
    AND (%(until)s::timestamptz IS NULL OR at < %(until)s)
    AND (%(before_seq)s::bigint IS NULL OR seq < %(before_seq)s)
ORDER BY seq DESC
LIMIT %(maximum)s
