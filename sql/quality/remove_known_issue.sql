-- Forget a known issue.
-- params: known_issue_id
-- rows: one: (known_issue_id), none when there is no such issue
-- index: known_issues_pkey
DELETE FROM queuekeeper.known_issues
WHERE known_issue_id = %(known_issue_id)s
RETURNING known_issue_id
