-- Record that a recreated partition holds its rows again; its days in quarantine begin again.
-- Its archive is of the earlier table: before it is dropped again, it needs a new archive.
-- params: retired_id, now_ms, quarantine_days
-- rows: at most one: (retired_id)
-- index: retired_partitions_pkey
UPDATE queuekeeper.retired_partitions
SET
    state = 'quarantined',
    archived_at = NULL,
    retired_at = to_timestamp(%(now_ms)s / 1000.0),
    drop_after = to_timestamp(%(now_ms)s / 1000.0) + make_interval(days => %(quarantine_days)s)
WHERE
    retired_id = %(retired_id)s
    AND state = 'restoring'
RETURNING retired_id
