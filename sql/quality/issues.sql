-- name: add_known_issue
-- Add a known issue.
-- params: check_id, client_hash, place, owner, reason, ends_on
-- rows: one: (known_issue_id)
-- index: known_issues_pkey
INSERT INTO queuekeeper.known_issues (check_id, client_hash, place, owner, reason, ends_on)
VALUES (%(check_id)s, %(client_hash)s, %(place)s, %(owner)s, %(reason)s, %(ends_on)s)
RETURNING known_issue_id;

-- name: remove_known_issue
-- Delete a known issue.
-- params: known_issue_id
-- rows: one: (check_id, client_hash, place, owner), none when there is no such issue
-- index: known_issues_pkey
DELETE FROM queuekeeper.known_issues
WHERE known_issue_id = %(known_issue_id)s
RETURNING check_id, client_hash, place, owner;

-- name: known_issues
-- Read the known issues, those that have ended included.
-- params: none
-- rows: (known_issue_id, check_id, client_hash, place, owner, reason, ends_on, created_at)
-- index: none, people write these by hand
SELECT
    known_issue_id,
    check_id,
    client_hash,
    place,
    owner,
    reason,
    ends_on,
    created_at
FROM queuekeeper.known_issues
ORDER BY ends_on, known_issue_id;
