-- Save the policy of a table, in place of its former one.
-- params: table, step, ahead, retention, far_future, lowest_needed_sql, archive, register_archives, quarantine_schema,
-- quarantine_days, blocking_detach, storage, lock_timeout_ms, deadline_s, at_most
-- rows: none
-- index: partition_policies_pkey
INSERT INTO queuekeeper.partition_policies (
    table_name, step, ahead, retention, far_future, lowest_needed_sql, archive, register_archives, quarantine_schema,
    quarantine_days, blocking_detach, storage, lock_timeout_ms, deadline_s, at_most
)
VALUES (
    %(table)s, %(step)s, %(ahead)s, %(retention)s, %(far_future)s, %(lowest_needed_sql)s, %(archive)s,
    %(register_archives)s, %(quarantine_schema)s, %(quarantine_days)s, %(blocking_detach)s, %(storage)s,
    %(lock_timeout_ms)s, %(deadline_s)s, %(at_most)s
)
ON CONFLICT (table_name) DO UPDATE
    SET (
        step, ahead, retention, far_future, lowest_needed_sql, archive, register_archives, quarantine_schema,
        quarantine_days, blocking_detach, storage, lock_timeout_ms, deadline_s, at_most, updated_at
    ) = (
        excluded.step, excluded.ahead, excluded.retention, excluded.far_future, excluded.lowest_needed_sql,
        excluded.archive, excluded.register_archives, excluded.quarantine_schema, excluded.quarantine_days,
        excluded.blocking_detach, excluded.storage, excluded.lock_timeout_ms, excluded.deadline_s, excluded.at_most,
        clock_timestamp()
    )
