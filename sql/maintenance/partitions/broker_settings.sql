-- Read the event broker's settings of partitions.
-- params: none
-- rows: one: (step_s, ahead_s, retention_s)
-- index: none, the table is small
SELECT
    extract(EPOCH FROM pgmb.get_config_value('partition_interval')::interval)::bigint AS step_s,
    extract(EPOCH FROM pgmb.get_config_value('future_intervals_to_create')::interval)::bigint AS ahead_s,
    extract(EPOCH FROM pgmb.get_config_value('partition_retention_period')::interval)::bigint AS retention_s
