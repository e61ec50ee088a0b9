-- Settings of the broker; what they mean and may be stands in check_config.
CREATE TYPE pgmb.config_type AS ENUM (
    'plugin_version',
    'partition_retention_period',
    'future_intervals_to_create',
    'partition_interval',
    'poll_chunk_size',
    'use_pg_cron',
    'pg_cron_poll_for_events_cron',
    'pg_cron_partition_maintenance_cron',
    'retention_waits_for_consumers',
    'drop_expired_partitions',
    'maintenance_lock_timeout',
    'maintenance_attempts'
);
