-- Note a failure that somebody answers for until a day.
-- params: check_id, client_hash, owner, reason, ends_on
-- rows: one: (known_issue_id)
-- index: known_issues_pkey
INSERT INTO queuekeeper.known_issues (check_id, client_hash, owner, reason, ends_on)
VALUES (%(check_id)s, %(client_hash)s, %(owner)s, %(reason)s, %(ends_on)s)
RETURNING known_issue_id
