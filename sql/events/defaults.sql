-- Settings of a new installation. Those that somebody has changed stay.
INSERT INTO pgmb.config (id, value)
VALUES
('plugin_version', '0.2.0'),
('partition_interval', '30 minutes'),
('future_intervals_to_create', '3 hours'),
('partition_retention_period', '60 minutes'),
('poll_chunk_size', '10000'),
('use_pg_cron', 'false'),
('pg_cron_poll_for_events_cron', '1 second'),
('pg_cron_partition_maintenance_cron', '0 * * * *'),
('retention_waits_for_consumers', 'true'),
('drop_expired_partitions', 'true'),
('maintenance_lock_timeout', '1s'),
('maintenance_attempts', '30')
ON CONFLICT (id) DO NOTHING;
