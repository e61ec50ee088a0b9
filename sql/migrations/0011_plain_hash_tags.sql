-- No client id is encoded in the names of its keys any more.
-- makes: key_slot
UPDATE queuekeeper.session_owners
SET slot = queuekeeper.key_slot(client_id)
WHERE left(client_id, 1) IN ('}', '%');
