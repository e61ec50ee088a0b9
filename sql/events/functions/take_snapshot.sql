-- Return the present snapshot, with the caller's own transaction as open. pg_current_snapshot() omits it: after a later
-- transaction has ended, events that the caller publishes next would count as seen.
CREATE FUNCTION pgmb.take_snapshot()
RETURNS pg_snapshot
LANGUAGE sql
STABLE
SET search_path TO pgmb, pg_temp
AS $$
    SELECT
        CASE
            WHEN pg_visible_in_snapshot(pg_current_xact_id_if_assigned(), taken.snapshot)
                THEN format(
                    '%s:%s:%s',
                    least(pg_snapshot_xmin(taken.snapshot), pg_current_xact_id_if_assigned()),
                    pg_snapshot_xmax(taken.snapshot),
                    (
                        SELECT string_agg(x.id::text, ',' ORDER BY x.id)
                        FROM (
                            SELECT pg_snapshot_xip(taken.snapshot)
                            UNION ALL
                            SELECT pg_current_xact_id_if_assigned()
                        ) AS x(id)
                    )
                )::pg_snapshot
            ELSE taken.snapshot
        END
    FROM (SELECT pg_current_snapshot()) AS taken(snapshot)
$$;
