-- Read the failures that somebody answers for, ended ones included.
-- params: none
-- rows: (known_issue_id, check_id, client_hash, owner, reason, ends_on, created_at)
-- index: none, people write these by hand
SELECT
    known_issue_id,
    check_id,
    client_hash,
    owner,
    reason,
    ends_on,
    created_at
FROM queuekeeper.known_issues
ORDER BY ends_on, known_issue_id
