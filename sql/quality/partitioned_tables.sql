-- Rows of the suite of partitions: each partitioned table as it was read when the run began.
-- params: quality_run_id
-- rows: (table_name, unreadable, intervals_ahead, head_room_met, gaps, default_rows, overflow_rows, pending_detaches);
-- null is what does not apply to a table
-- index: quality_runs_pkey
SELECT
    found.table_name,
    found.unreadable,
    found.intervals_ahead,
    found.head_room_met,
    found.gaps,
    found.default_rows,
    found.overflow_rows,
    found.pending_detaches
FROM queuekeeper.quality_runs AS runs
CROSS JOIN
    jsonb_to_recordset(runs.numbers -> 'partitions') AS found (
        table_name text,
        unreadable int,
        intervals_ahead double precision,
        head_room_met int,
        gaps int,
        default_rows int,
        overflow_rows int,
        pending_detaches int
    )
WHERE runs.quality_run_id = %(quality_run_id)s
