-- Keep the policy of a table, in place of its former one.
-- params: table, step, ahead, retention, far_future, lowest_needed_sql, archive, quarantine_schema, quarantine_days,
-- blocking_detach, storage, lock_timeout_ms, deadline_s, at_most
-- rows: none
-- index: partition_policies_pkey
INSERT INTO queuekeeper.partition_policies (
    table_name, step, ahead, retention, far_future, lowest_needed_sql, archive, quarantine_schema, quarantine_days,
    blocking_detach, storage, lock_timeout_ms, deadline_s, at_most
)
VALUES (
    %(table)s, %(step)s, %(ahead)s, %(retention)s, %(far_future)s, %(lowest_needed_sql)s, %(archive)s,
    %(quarantine_schema)s, %(quarantine_days)s, %(blocking_detach)s, %(storage)s,
    %(lock_timeout_ms)s, %(deadline_s)s, %(at_most)s
)
ON CONFLICT (table_name) DO UPDATE
    SET
        step = excluded.step,
        ahead = excluded.ahead,
        retention = excluded.retention,
        far_future = excluded.far_future,
        lowest_needed_sql = excluded.lowest_needed_sql,
        archive = excluded.archive,
        quarantine_schema = excluded.quarantine_schema,
        quarantine_days = excluded.quarantine_days,
        blocking_detach = excluded.blocking_detach,
        storage = excluded.storage,
        lock_timeout_ms = excluded.lock_timeout_ms,
        deadline_s = excluded.deadline_s,
        at_most = excluded.at_most,
        updated_at = clock_timestamp()
