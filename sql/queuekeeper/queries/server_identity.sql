-- Tell which database cluster this is, and how often a standby has taken over from it.
-- params: none
-- rows: one: (system_identifier, timeline)
-- index: none
SELECT
    (pg_control_system()).system_identifier,
    (pg_control_checkpoint()).timeline_id AS timeline
