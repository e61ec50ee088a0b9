-- Make the row by which people steer an online migration.
-- params: plan_id
-- rows: none
-- index: online_control_pkey
INSERT INTO queuekeeper.online_control (plan_id)
VALUES (%(plan_id)s)
ON CONFLICT (plan_id) DO NOTHING
