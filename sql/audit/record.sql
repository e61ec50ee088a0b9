-- Add an entry to the audit; a trigger sets its number, instant and hashes.
-- params: actor, action, subject, report_hash, effect
-- rows: none
-- index: none, an insert
INSERT INTO queuekeeper.audit (actor, action, subject, report_hash, effect)
VALUES (%(actor)s, %(action)s, %(subject)s, %(report_hash)s, %(effect)s::json)
