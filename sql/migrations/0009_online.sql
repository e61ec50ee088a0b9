-- Cohorts whose sessions move while devices are connected: how far each has come, and who may drive it.
CREATE TABLE queuekeeper.online_cohorts (
    plan_id text NOT NULL,
    cohort int NOT NULL,
    slot_first int NOT NULL,
    slot_last int NOT NULL, -- included
    state text NOT NULL DEFAULT 'planned', -- in all others writers ask who owns a session: the cohort is armed
    step_at timestamptz NOT NULL DEFAULT clock_timestamp(), -- when it came into its state
    default_owner text NOT NULL DEFAULT 'postgres', -- of a client that comes for the first time
    driver bigint, -- number of the driver that may change it; null: none yet
    dirty_reason text NOT NULL DEFAULT '', -- why it has to be verified again; empty: it need not
    servers text, -- replication ids and timeline of the servers that were last worked with
    verified_at_ms bigint,
    CONSTRAINT online_cohorts_pkey PRIMARY KEY (plan_id, cohort),
    CONSTRAINT online_cohorts_plan_id_fkey FOREIGN KEY (plan_id) REFERENCES queuekeeper.plans (plan_id),
    CONSTRAINT online_cohorts_slots_check CHECK (0 <= slot_first AND slot_first <= slot_last AND slot_last < 16384),
    CONSTRAINT online_cohorts_state_check CHECK (
        state IN (
            'planned', 'copying', 'caught_up', 'verified', 'cutting_over', 'on_redis', 'soaking', 'committed',
            'rolling_back'
        )
    ),
    CONSTRAINT online_cohorts_default_owner_check CHECK (default_owner IN ('postgres', 'redis')),
    -- A session is on one way at a time.
    CONSTRAINT online_cohorts_slots_excl EXCLUDE USING gist (
        int4range(slot_first, slot_last, '[]') WITH &&
    ) WHERE (state NOT IN ('planned', 'committed'))
);

-- Numbers of drivers: the later one is the one that counts.
CREATE SEQUENCE queuekeeper.online_drivers;

-- Which store owns a session, for sessions that move or have moved while devices are connected; all others are
-- PostgreSQL's. Who writes a session holds its row in share mode until the transaction ends.
CREATE TABLE queuekeeper.session_owners (
    client_id text NOT NULL,
    slot int NOT NULL, -- key_slot of the client id
    owner text NOT NULL,
    epoch bigint NOT NULL, -- microseconds at first; grows with every change of owner or state
    state text NOT NULL DEFAULT 'settled',
    fenced_until timestamptz, -- nobody but the driver writes before; lifted by the first who comes after
    driver bigint, -- who fenced it last
    mirrored boolean NOT NULL DEFAULT FALSE, -- changes in Redis are written to PostgreSQL too
    CONSTRAINT session_owners_pkey PRIMARY KEY (client_id),
    CONSTRAINT session_owners_owner_check CHECK (owner IN ('postgres', 'redis')),
    CONSTRAINT session_owners_epoch_check CHECK (epoch > 0),
    CONSTRAINT session_owners_state_check CHECK (state IN ('settled', 'fenced')),
    CONSTRAINT session_owners_fenced_until_check CHECK ((state = 'fenced') = (fenced_until IS NOT NULL))
);

-- Serves whoever goes through the clients of a cohort.
CREATE INDEX session_owners_slot_idx ON queuekeeper.session_owners (slot, owner);

-- Return the hash slot of all Redis keys of a client: CRC16 (XMODEM) of what the first pair of braces holds, which is
-- the id as far as its first closing brace. An id that begins with one has it percent-encoded, and percent likewise.
CREATE FUNCTION queuekeeper.key_slot(client_id text)
RETURNS int
LANGUAGE plpgsql
IMMUTABLE
STRICT
PARALLEL SAFE
AS $$
DECLARE
    tag bytea := convert_to(
        CASE
            WHEN client_id = '' THEN '{}' -- nothing between the braces: the whole key counts
            WHEN left(client_id, 1) = '}' THEN '%7D' || split_part(substr(client_id, 2), '}', 1)
            WHEN left(client_id, 1) = '%' THEN '%25' || split_part(substr(client_id, 2), '}', 1)
            ELSE split_part(client_id, '}', 1)
        END,
        'UTF8'
    );
    crc int := 0;
    part int;
BEGIN
    FOR place IN 0..length(tag) - 1 LOOP
        part := (crc >> 8) # get_byte(tag, place);
        part := part # (part >> 4);
        crc := ((crc << 8) # (part << 12) # (part << 5) # part) & 65535;
    END LOOP;
    RETURN crc % 16384;
END;
$$;

-- Lock who owns sessions until the transaction ends, in one order, and return those that must not be written: QK001
-- when they are not PostgreSQL's, QK002 on their way to another store, QK003 when the epoch is another one.
-- A session of an armed cohort that has no row gets one; a fence whose time is over is lifted.
-- The driver of a session's cohort, as the setting queuekeeper.driver tells it, may write what is refused to others.
-- It runs as the owner of the schema: who writes sessions need not be allowed to see or move their owners.
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
    -- Whoever arms a cohort waits for the holders of this lock, since they may look before.
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
            -- Who begins in Redis can go to PostgreSQL like all others, until the cohort is committed.
            cohort.default_owner = 'redis' AND cohort.state <> 'committed'
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
                armed_cohort.state
            FROM queuekeeper.online_cohorts AS armed_cohort
            WHERE
                armed_cohort.state <> 'planned'
                AND missing.slot BETWEEN armed_cohort.slot_first AND armed_cohort.slot_last
            -- An earlier migration's last word counts as long as no other has begun.
            ORDER BY armed_cohort.state = 'committed', armed_cohort.step_at DESC
            LIMIT 1
            FOR SHARE
        ) AS cohort
        ORDER BY missing.client_id
        ON CONFLICT DO NOTHING;
    END IF;

    IF writer IS NOT NULL THEN
        -- Whoever takes a cohort over from this driver waits until what it is writing has ended.
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
        -- All of them at once in the stronger mode: who asked for it later, one by one, could wait in a circle.
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

-- Hold sessions for writing until the transaction ends; the first statement of every write, before its snapshots.
-- Any that must not be written fails it all, with the SQLSTATE of the first; the detail lists each: [id, SQLSTATE].
CREATE FUNCTION queuekeeper.hold_owners(client_ids text[], epochs bigint[])
RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    first record;
    every jsonb;
BEGIN
    SELECT
        min(refused.code) FILTER (WHERE refused.place = 1) AS code,
        min(refused.why) FILTER (WHERE refused.place = 1) AS why,
        jsonb_agg(jsonb_build_array(refused.session, refused.code) ORDER BY refused.place) AS every
    INTO first
    FROM (
        SELECT session, code, why, row_number() OVER () AS place
        FROM queuekeeper.refused_owners(client_ids, epochs)
    ) AS refused;
    IF first.code IS NOT NULL THEN
        RAISE EXCEPTION '%', first.why
        USING
            ERRCODE = first.code,
            DETAIL = first.every::text,
            HINT = CASE first.code
                WHEN 'QK001' THEN 'Write to the other store.'
                WHEN 'QK002' THEN 'Repeat the transaction in a moment.'
                ELSE 'Look up who owns the session.'
            END;
    END IF;
END;
$$;

-- Tell whether any session may be another store's, or on its way there; until the transaction ends nobody who arms a
-- cohort goes on without it.
CREATE FUNCTION queuekeeper.sessions_move()
RETURNS boolean
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = ''
AS $$
BEGIN
    -- Whoever arms a cohort waits for the holders of this lock, since they may have looked before.
    LOCK TABLE queuekeeper.online_cohorts IN ACCESS SHARE MODE;
    RETURN EXISTS (SELECT 1 AS one FROM queuekeeper.online_cohorts AS cohort WHERE cohort.state <> 'planned')
    OR EXISTS (SELECT 1 AS one FROM queuekeeper.session_owners);
END;
$$;

-- Refuse a change of a session that is another store's, by writers that do not ask themselves. One that is on its way
-- there is refused as a serialization failure, upon which a transaction is repeated.
-- It runs as the owner of the schema: such writers know nothing of it.
CREATE FUNCTION queuekeeper.refuse_moved_session()
RETURNS trigger
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = ''
AS $$
DECLARE
    refused record;
BEGIN
    SELECT found.code, found.why
    INTO refused
    FROM queuekeeper.refused_owners(
        CASE TG_OP
            WHEN 'INSERT' THEN ARRAY[NEW.client_id]
            WHEN 'DELETE' THEN ARRAY[OLD.client_id]
            ELSE ARRAY[OLD.client_id, NEW.client_id]
        END::text[],
        NULL
    ) AS found
    LIMIT 1;
    IF refused.code = 'QK002' THEN
        RAISE EXCEPTION '%', refused.why
        USING ERRCODE = 'serialization_failure', HINT = 'Repeat the transaction in a moment.';
    ELSIF refused.code IS NOT NULL THEN
        RAISE EXCEPTION '%', refused.why
        USING ERRCODE = refused.code, HINT = 'Write to the other store.';
    END IF;
    RETURN CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
END;
$$;
