-- A migration is paused and slowed down like any other run, whether or not devices are connected.
ALTER TABLE queuekeeper.plans ADD COLUMN paused boolean NOT NULL DEFAULT FALSE;

CREATE TEMPORARY TABLE online_control_before AS
SELECT
    plan_id,
    held_back,
    canary,
    rehearsed_at
FROM queuekeeper.online_control;

-- changes: online_control
UPDATE queuekeeper.plans
SET
    paused = control.paused,
    throttle_messages_per_s = coalesce(control.clients_per_s, plans.throttle_messages_per_s)
FROM queuekeeper.online_control AS control
WHERE control.plan_id = plans.plan_id;

DROP TABLE queuekeeper.online_control;

-- makes: online_control
INSERT INTO queuekeeper.online_control (plan_id, held_back, canary, rehearsed_at)
SELECT
    plan_id,
    held_back,
    canary,
    rehearsed_at
FROM online_control_before;

DROP TABLE online_control_before;
