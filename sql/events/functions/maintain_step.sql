-- Do one step of maintain_events_table; return whether there is more of it to do.
CREATE FUNCTION pgmb.maintain_step(step text, tbl regclass, current_ts timestamptz)
RETURNS boolean
LANGUAGE plpgsql
VOLATILE
SET search_path TO pgmb, pg_temp
AS $$
BEGIN
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
