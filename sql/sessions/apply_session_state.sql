-- Record how far another store has delivered a session's messages.
-- params: client_id, last_serial, delivered_serial, message_bound, until_ms; message_bound: null: unknown; until_ms:
-- never brought forward
-- rows: none
-- index: session_states_pkey
INSERT INTO queuekeeper.session_states AS state (client_id, known_serial, message_bound, delivered_serial, until_ms)
VALUES (%(client_id)s, %(last_serial)s, %(message_bound)s, %(delivered_serial)s, %(until_ms)s)
ON CONFLICT (client_id) DO UPDATE SET
    known_serial = excluded.known_serial,
    message_bound = excluded.message_bound,
    delivered_serial = excluded.delivered_serial,
    until_ms = greatest(state.until_ms, excluded.until_ms)
