-- Change how many clients an online migration moves per second.
-- params: plan_id, clients_per_s
-- rows: none
-- index: online_control_pkey
UPDATE queuekeeper.online_control
SET clients_per_s = %(clients_per_s)s
WHERE plan_id = %(plan_id)s
