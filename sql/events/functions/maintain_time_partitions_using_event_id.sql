-- Give a table that is partitioned by ids of events partitions from this moment's on, then drop those that ended before
-- the retention period. additional_sql is executed for each new one, with $1 as its name.
-- The table is one of the broker's, where nothing is dropped that somebody needs, or one of the caller's own. There
-- bounds are compared, never names, and what exists is gone round.
CREATE FUNCTION pgmb.maintain_time_partitions_using_event_id(
    table_id regclass,
    partition_interval interval,
    future_interval interval,
    retention_period interval,
    additional_sql text DEFAULT NULL,
    current_ts timestamptz DEFAULT now()
)
RETURNS void
LANGUAGE plpgsql
SET search_path TO pgmb, pg_temp
SET timezone TO 'UTC'
AS $$
DECLARE
    is_ours CONSTANT boolean := table_id IN (
        'events'::regclass, 'dispatches'::regclass, 'subscription_events'::regclass
    );
    begins_at CONSTANT timestamptz := date_bin(partition_interval, current_ts, '2000-01-01 00:00:00+00');
    expired_id CONSTANT text := create_event_id(begins_at - retention_period, 0);
    known CONSTANT regclass[] := ARRAY(SELECT b.partition FROM partition_bounds(table_id) AS b);
    made regclass;
    missing record;
BEGIN
    IF partition_interval < interval '1 minute' OR future_interval < partition_interval
        OR extract(EPOCH FROM future_interval) / extract(EPOCH FROM partition_interval) > 2000 THEN
        RAISE EXCEPTION 'partition_interval % and future_interval % do not go together', partition_interval, future_interval
            USING ERRCODE = 'invalid_parameter_value',
            HINT = 'The first must be 1 minute or more, the second at least as long, and at most 2000 of the first.';
    END IF;
    IF is_ours THEN
        WHILE extend_partitions_by(table_id, current_ts, partition_interval, future_interval) > 0 LOOP
            NULL;
        END LOOP;
    ELSE
        IF NOT pg_try_advisory_xact_lock(hashtextextended('pgmb.maintain/' || table_id::oid, 0)) THEN
            RAISE NOTICE 'partitions of % are being maintained by another session', table_id;
            RETURN;
        END IF;
        FOR missing IN
            SELECT
                lower(gap.range) AS lower_at,
                upper(gap.range) AS upper_at
            FROM generate_series(begins_at, begins_at + future_interval, partition_interval) AS wanted(at)
            CROSS JOIN LATERAL unnest(
                tstzmultirange(tstzrange(wanted.at, wanted.at + partition_interval)) - (
                    SELECT coalesce(
                        range_agg(
                            tstzrange(
                                extract_date_from_event_id(b.lower_bound), extract_date_from_event_id(b.upper_bound)
                            )
                        ),
                        '{}'
                    )
                    FROM partition_bounds(table_id) AS b
                    WHERE b.lower_bound IS NOT NULL
                )
            ) AS gap(range)
            ORDER BY lower_at
        LOOP
            made := create_partition(table_id, to_char(missing.lower_at, 'YYYYMMDDHH24MI'));
            PERFORM attach_partition(table_id, made, missing.lower_at, missing.upper_at);
        END LOOP;
    END IF;
    IF additional_sql IS NOT NULL THEN
        FOR made IN SELECT b.partition FROM partition_bounds(table_id) AS b WHERE NOT b.partition = ANY(known) LOOP
            EXECUTE replace(additional_sql, '$1', made::text);
        END LOOP;
    END IF;
    IF is_ours THEN
        WHILE drop_partition_before(table_id, expired_id) IS NOT NULL LOOP
            NULL;
        END LOOP;
    ELSE
        FOR made IN SELECT b.partition FROM partition_bounds(table_id) AS b WHERE b.upper_bound <= expired_id LOOP
            EXECUTE format('DROP TABLE %s', made);
        END LOOP;
    END IF;
END
$$;
