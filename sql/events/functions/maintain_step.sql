-- Do one step of maintain_events_table; return whether there is more to do. The rest of the transaction waits for a
-- lock at most maintenance_lock_timeout.
CREATE FUNCTION pgmb.maintain_step(step text, tbl regclass, current_ts timestamptz)
RETURNS boolean
LANGUAGE plpgsql
SET search_path TO pgmb, pg_temp
AS $$
BEGIN
    -- PostgreSQL reads a setting's time in fewer ways than an interval.
    PERFORM set_config(
        'lock_timeout',
        round(extract(EPOCH FROM get_config_value('maintenance_lock_timeout')::interval) * 1000)::text, TRUE
    );
    CASE step
        WHEN 'guard' THEN
            PERFORM guard_overflow();
            RETURN FALSE;
        WHEN 'validate' THEN
            PERFORM validate_overflow();
            RETURN FALSE;
        WHEN 'extend' THEN
            RETURN extend_partitions(tbl, current_ts) > 0;
        WHEN 'drop' THEN
            RETURN get_config_value('drop_expired_partitions')::boolean
                AND drop_expired_partition(tbl, current_ts) IS NOT NULL;
    END CASE;
END
$$;
