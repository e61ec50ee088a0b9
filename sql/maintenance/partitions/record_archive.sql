-- Record that the archive of a retired partition was verified.
-- params: retired_id, archive
-- rows: at most one: (retired_id)
-- index: retired_partitions_pkey
UPDATE queuekeeper.retired_partitions
SET
    archive = %(archive)s,
    archived_at = clock_timestamp()
WHERE
    retired_id = %(retired_id)s
    AND state IN ('quarantined', 'restoring')
RETURNING retired_id
