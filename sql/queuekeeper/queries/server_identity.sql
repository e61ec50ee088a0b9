-- Tell which database cluster this is, and how often a standby has taken over from it.
-- params: none
-- rows: one: (system_identifier, timeline)
-- index: none
SELECT
    system.system_identifier,
    checkpoint.timeline_id AS timeline
FROM pg_control_system() AS system
CROSS JOIN pg_control_checkpoint() AS checkpoint
