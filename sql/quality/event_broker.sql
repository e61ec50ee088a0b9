-- Rows of the suite of the event broker, as they were read when the run began. The columns of a row depend on its kind;
-- the others are null, which expectations ignore.
-- params: quality_run_id
-- rows: (kind, name, subscriptions, behind_retention, unread_h, never_dispatched, is_foreign, stalled_s, fails,
-- quarantined, freeze_share, is_active, is_lost, kept_gib)
-- index: quality_runs_pkey
SELECT
    found.kind,
    found.name,
    found.subscriptions,
    found.behind_retention,
    found.unread_h,
    found.never_dispatched,
    found.is_foreign,
    found.stalled_s,
    found.fails,
    found.quarantined,
    found.freeze_share,
    found.is_active,
    found.is_lost,
    found.kept_gib
FROM queuekeeper.quality_runs AS runs
CROSS JOIN
    jsonb_to_recordset(runs.numbers -> 'events') AS found (
        kind text,
        name text,
        subscriptions bigint,
        behind_retention int,
        unread_h double precision,
        never_dispatched bigint,
        is_foreign int,
        stalled_s double precision,
        fails int,
        quarantined bigint,
        freeze_share double precision,
        is_active int,
        is_lost int,
        kept_gib double precision
    )
WHERE runs.quality_run_id = %(quality_run_id)s
