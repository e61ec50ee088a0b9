-- List rows and records of one client in quarantine, of migrations and of its store, without contents.
-- params: client_id
-- rows: (where it is, kind, reason, detail, serial, status); the serial of a session row is null
-- index: quarantine_message_key and quarantine_session_key, session_quarantine_client_id_idx
SELECT
    'plan ' || aside.plan_id AS place,
    aside.kind,
    aside.reason,
    aside.detail,
    aside.serial_number,
    aside.status
FROM queuekeeper.plans
INNER JOIN queuekeeper.quarantine AS aside ON plans.plan_id = aside.plan_id
WHERE aside.client_id = %(client_id)s
UNION ALL
SELECT
    'PostgreSQL store' AS place,
    'message' AS kind,
    aside.reason,
    '' AS detail,
    aside.serial_number,
    aside.status
FROM queuekeeper.session_quarantine AS aside
WHERE aside.client_id = %(client_id)s
ORDER BY serial_number, place
LIMIT 1000
