-- Lock the owners of sessions until the transaction ends, in one order, and return sessions that must not be written:
-- QK001 when PostgreSQL does not own them, QK002 while they move to another store, QK003 when the epoch differs.
-- A session of an armed cohort without a row gets one; a fence whose time is over is lifted.
-- The driver of a session's cohort, given by the setting queuekeeper.driver, may write sessions that others may not.
-- It runs as the owner of the schema, so that a role that writes sessions needs no rights on their owners.
CREATE FUNCTION queuekeeper.refused_owners(client_ids text[], epochs bigint[])
RETURNS TABLE (session text, code text, why text)
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = ''
SET plan_cache_mode = 'force_generic_plan'
AS $$
DECLARE
    writer bigint := nullif(current_setting('queuekeeper.driver', TRUE), '')::bigint;
    armed boolean;
BEGIN
    -- A process that arms a cohort waits for the holders of this lock, since they may have checked before.
    LOCK TABLE queuekeeper.online_cohorts IN ACCESS SHARE MODE;
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        -- An older snapshot does not show which cohorts were armed since; the table's size is outside of all snapshots.
        IF pg_catalog.pg_relation_size('queuekeeper.online_cohorts') > 0 THEN
            RAISE EXCEPTION 'sessions that may move are not written at isolation level %',
                current_setting('transaction_isolation')
            USING ERRCODE = 'feature_not_supported', HINT = 'Use READ COMMITTED.';
        END IF;
    END IF;

    armed := EXISTS (SELECT 1 AS one FROM queuekeeper.online_cohorts AS cohort WHERE cohort.state <> 'planned');
    IF NOT armed AND NOT EXISTS (
        SELECT 1 AS one FROM queuekeeper.session_owners AS known WHERE known.client_id = ANY(client_ids)
    ) THEN
        RETURN;
    END IF;

    IF armed THEN
        INSERT INTO queuekeeper.session_owners (client_id, slot, owner, epoch, mirrored)
        SELECT
            missing.client_id,
            missing.slot,
            cohort.default_owner,
            -- Redis may know an epoch of an earlier migration, and follows only a greater one.
            floor(extract(EPOCH FROM clock_timestamp()) * 1000000)::bigint,
            -- A client that starts in the target can move back like all others, until the cohort is committed.
            cohort.default_owner <> cohort.source_owner AND cohort.state <> 'committed'
        FROM (
            SELECT DISTINCT wanted.client_id, queuekeeper.key_slot(wanted.client_id) AS slot
            FROM unnest(client_ids) AS wanted (client_id)
            WHERE NOT EXISTS (
                SELECT 1 AS one FROM queuekeeper.session_owners AS known WHERE known.client_id = wanted.client_id
            )
        ) AS missing
        CROSS JOIN LATERAL (
            SELECT
                armed_cohort.default_owner,
                armed_cohort.source_owner,
                armed_cohort.state
            FROM queuekeeper.online_cohorts AS armed_cohort
            WHERE
                armed_cohort.state <> 'planned'
                AND missing.slot BETWEEN armed_cohort.slot_first AND armed_cohort.slot_last
            -- The result of an earlier migration counts until another migration has begun.
            ORDER BY armed_cohort.state = 'committed', armed_cohort.step_at DESC
            LIMIT 1
            FOR SHARE
        ) AS cohort
        ORDER BY missing.client_id
        ON CONFLICT DO NOTHING;
    END IF;

    IF writer IS NOT NULL THEN
        -- A driver that takes a cohort over from this one waits until its present writes have ended.
        PERFORM 1
        FROM queuekeeper.online_cohorts AS cohort
        WHERE
            cohort.state NOT IN ('planned', 'committed')
            AND EXISTS (
                SELECT 1 AS one
                FROM queuekeeper.session_owners AS known
                WHERE known.client_id = ANY(client_ids) AND known.slot BETWEEN cohort.slot_first AND cohort.slot_last
            )
        ORDER BY cohort.plan_id, cohort.cohort
        FOR SHARE;
    END IF;

    IF writer IS NOT NULL OR EXISTS (
        SELECT 1 AS one
        FROM queuekeeper.session_owners AS known
        WHERE known.client_id = ANY(client_ids) AND known.fenced_until <= clock_timestamp()
    ) THEN
        -- All rows at once in the stronger mode: requests for it later, one by one, could deadlock.
        PERFORM 1
        FROM queuekeeper.session_owners AS known
        WHERE known.client_id = ANY(client_ids)
        ORDER BY known.client_id
        FOR UPDATE;
        UPDATE queuekeeper.session_owners AS known
        SET state = 'settled', epoch = known.epoch + 1, fenced_until = NULL
        WHERE known.client_id = ANY(client_ids) AND known.fenced_until <= clock_timestamp();
    ELSE
        PERFORM 1
        FROM queuekeeper.session_owners AS known
        WHERE known.client_id = ANY(client_ids)
        ORDER BY known.client_id
        FOR SHARE;
    END IF;

    RETURN QUERY
    SELECT judged.client_id, judged.code, judged.why
    FROM (
        SELECT
            known.client_id,
            CASE
                WHEN known.owner <> 'postgres' AND passes.driver IS NOT TRUE THEN 'QK001'
                WHEN known.state = 'fenced' AND passes.driver IS NOT TRUE THEN 'QK002'
                WHEN known.epoch <> wanted.epoch THEN 'QK003'
            END AS code,
            CASE
                WHEN known.owner <> 'postgres' AND passes.driver IS NOT TRUE
                    THEN format('NOT_OWNER Redis owns session %L', known.client_id)
                WHEN known.state = 'fenced' AND passes.driver IS NOT TRUE
                    THEN format('FENCED session %L is on its way to the other store', known.client_id)
                ELSE format('STALE epoch %s has session %L, not %s', known.epoch, known.client_id, wanted.epoch)
            END AS why
        FROM unnest(client_ids, epochs) AS wanted (client_id, epoch)
        INNER JOIN queuekeeper.session_owners AS known ON wanted.client_id = known.client_id
        CROSS JOIN LATERAL (
            SELECT writer = coalesce(
                (
                    SELECT cohort.driver
                    FROM queuekeeper.online_cohorts AS cohort
                    WHERE
                        writer IS NOT NULL
                        AND cohort.state NOT IN ('planned', 'committed')
                        AND known.slot BETWEEN cohort.slot_first AND cohort.slot_last
                ),
                known.driver
            ) AS driver
        ) AS passes
    ) AS judged
    WHERE judged.code IS NOT NULL
    ORDER BY judged.client_id;
END;
$$;
