-- Record that an answer is being added to the audit; nothing is added if it is there already.
-- params: subject, answered_at, action, actor
-- rows: none; the number of rows added says which
-- index: none, an insert
INSERT INTO queuekeeper.audit_answers (subject, answered_at, action, actor)
VALUES (%(subject)s, %(answered_at)s, %(action)s, %(actor)s)
ON CONFLICT DO NOTHING
