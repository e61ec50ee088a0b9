-- List entries of the audit in the order of the chain.
-- params: after_seq, maximum
-- rows: (seq, at, actor, action, subject, report_hash, effect as text, previous_hash, hash)
-- index: audit_pkey
SELECT
    seq,
    -- include: audit_columns
    hash
FROM queuekeeper.audit
WHERE seq > %(after_seq)s
ORDER BY seq
LIMIT %(maximum)s
