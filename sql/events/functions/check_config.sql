-- Refuse a wrong setting, and the removal of a setting; for the trigger on config.
CREATE FUNCTION pgmb.check_config()
RETURNS trigger
LANGUAGE plpgsql
SET search_path TO pgmb, pg_temp
AS $$
DECLARE
    day CONSTANT interval := interval '24 hours';
    width interval;
    ahead interval;
    refusal text;
BEGIN
    IF TG_OP = 'DELETE' THEN
        RAISE EXCEPTION 'setting % cannot be removed', old.id
            USING ERRCODE = 'invalid_parameter_value',
            HINT = 'Retention and polls go by it: set it to another value.';
    END IF;
    IF new.id IN ('partition_interval', 'future_intervals_to_create', 'partition_retention_period') THEN
        IF new.value IS NULL OR extract(MONTH FROM new.value::interval) <> 0
            OR extract(YEAR FROM new.value::interval) <> 0 THEN
            refusal := 'write it in days, hours or minutes: months differ in length';
        END IF;
        width := CASE
            WHEN new.id = 'partition_interval' THEN new.value
            ELSE get_config_value('partition_interval')
        END;
        ahead := CASE
            WHEN new.id = 'future_intervals_to_create' THEN new.value
            ELSE get_config_value('future_intervals_to_create')
        END;
        IF refusal IS NOT NULL THEN
            NULL;
        ELSIF new.id = 'partition_retention_period' THEN
            IF new.value::interval < interval '0' THEN
                refusal := 'it must not be negative: 0 drops what everybody has read as soon as a partition is over';
            ELSIF now() - new.value::interval < 'epoch'::timestamptz THEN
                refusal := 'it reaches back before 1970: for keeping everything set drop_expired_partitions to false';
            END IF;
        ELSIF new.id = 'partition_interval' AND width < interval '1 minute' THEN
            refusal := 'it must be 1 minute or more';
        ELSIF new.id = 'partition_interval' AND (
            CASE
                WHEN width <= day THEN extract(EPOCH FROM day) % extract(EPOCH FROM width)
                ELSE extract(EPOCH FROM width) % extract(EPOCH FROM day)
            END
        ) <> 0 THEN
            refusal := 'it must divide a day or be a number of whole days, so that every day begins with a partition';
        ELSIF new.id = 'future_intervals_to_create' AND ahead < interval '1 minute' THEN
            refusal := 'it must be 1 minute or more';
        ELSIF extract(EPOCH FROM ahead) / extract(EPOCH FROM width) > 2000 THEN
            refusal := format(
                'that makes %s partitions ahead: at most 2000, with partition_interval and future_intervals_to_create',
                round(extract(EPOCH FROM ahead) / extract(EPOCH FROM width))
            );
        END IF;
    ELSIF new.id = 'poll_chunk_size' THEN
        IF new.value IS NULL OR new.value::int NOT BETWEEN 1 AND 1000000 THEN
            refusal := 'it must be a number from 1 to 1000000';
        END IF;
    ELSIF new.id = 'maintenance_attempts' THEN
        IF new.value IS NULL OR new.value::int NOT BETWEEN 1 AND 10000 THEN
            refusal := 'it must be a number from 1 to 10000';
        END IF;
    ELSIF new.id = 'maintenance_lock_timeout' THEN
        IF new.value IS NULL
            OR new.value::interval NOT BETWEEN interval '1 millisecond' AND interval '1 minute' THEN
            refusal := 'it must be a time from 1ms to 1min: publishers wait so long';
        END IF;
    ELSIF new.id = 'use_pg_cron' THEN
        IF new.value IS DISTINCT FROM 'false' THEN
            refusal := 'let queuekeeper events dispatch or the DAGs poll and maintain; the keys of pg_cron do nothing here';
        END IF;
    ELSIF new.id IN ('retention_waits_for_consumers', 'drop_expired_partitions') THEN
        IF new.value IS NULL OR new.value NOT IN ('true', 'false') THEN
            refusal := 'it must be true or false';
        END IF;
    END IF;
    IF refusal IS NOT NULL THEN
        RAISE EXCEPTION 'setting % cannot be %: %', new.id, coalesce(new.value, 'NULL'), refusal
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    RETURN new;
EXCEPTION
    WHEN invalid_text_representation OR invalid_datetime_format OR datetime_field_overflow
        OR numeric_value_out_of_range THEN
        RAISE EXCEPTION 'setting % cannot be %: it does not read as one', new.id, new.value
            USING ERRCODE = 'invalid_parameter_value', HINT = SQLERRM;
END
$$;
