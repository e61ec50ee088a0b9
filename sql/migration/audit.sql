-- name: audit_plan
-- Return what an audit needs to know of a plan before it reads a file.
-- params: plan_id
-- rows: at most one: (state, mode, source, layout, prefix of the keys, instant of the last copy or replay in ms,
-- whether the source's tables are there)
-- index: plans_pkey, copy_reports_plan_id_idx, quarantine_plan_id_cohort_idx
SELECT
    p.state,
    coalesce(p.parameters ->> 'mode', 'offline') AS mode,
    coalesce(p.parameters ->> 'from_store', 'postgres') AS source,
    coalesce(p.parameters ->> 'layout', 'tbmq') AS layout,
    coalesce(p.parameters ->> 'key_prefix', '') AS key_prefix,
    floor(1000 * extract(EPOCH FROM greatest(
        (
            SELECT max(r.created_at) FROM queuekeeper.copy_reports AS r
            WHERE r.plan_id = p.plan_id
        ),
        (
            SELECT max(q.replayed_at) FROM queuekeeper.quarantine AS q
            WHERE q.plan_id = p.plan_id
        )
    )))::bigint AS written_at_ms,
    to_regclass('device_publish_msg') IS NOT NULL AND to_regclass('device_session_ctx') IS NOT NULL AS has_source
FROM queuekeeper.plans AS p
WHERE p.plan_id = %(plan_id)s;

-- name: make_audit_found
-- Make the table of what RDB files hold of sessions, as they hold it.
-- params: none
-- rows: none
-- index: none
CREATE TEMPORARY TABLE audit_found (
    found_id bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    file int NOT NULL,
    client_id text NOT NULL,
    part text NOT NULL, -- reference, payload; record: a message of a packed session; session, last_packet_id
    packet_id int, -- null where the key or record has none
    serial_number double precision, -- score of a reference, field of a record
    expires_at_ms bigint, -- of a payload or record; -1: never
    payload_sha256 bytea,
    facts jsonb -- fields of a message but its payload, null when it cannot be read; fields of a session
) ON COMMIT DROP;

-- name: load_audit_found
-- Load what RDB files hold.
-- params: none; rows follow in the order of the columns
-- rows: none
-- index: none
COPY audit_found (file, client_id, part, packet_id, serial_number, expires_at_ms, payload_sha256, facts) FROM STDIN;

-- name: make_audit_lines
-- Make the table of what became of each row, message, session and quarantined row.
-- params: none
-- rows: none
-- index: none
CREATE TEMPORARY TABLE audit_lines (
    cohort int NOT NULL,
    subject text NOT NULL, -- row: of the source; message: of Redis alone; session; quarantine
    client_id text NOT NULL,
    serial_number bigint,
    packet_id bigint,
    fate text, -- copied, expired, trimmed, superseded, quarantined, missing, different; of a session copied or null
    is_either boolean, -- whether the row ended so near to the verification that this may have found it or not
    differences jsonb NOT NULL -- kind -> what was expected, what was found
) ON COMMIT DROP;

-- name: audit_split_client
-- Return a client of whose session several files have keys.
-- params: none
-- rows: at most one: (client_id, number of one file, number of another)
-- index: none
SELECT
    client_id,
    min(file) AS one,
    max(file) AS another
FROM audit_found
GROUP BY client_id
HAVING min(file) != max(file)
ORDER BY client_id
LIMIT 1;

-- name: audit_is_of_plan
-- Return whether the files hold a session that the plan has imported, or it had none to import.
-- params: plan_id
-- rows: one: (boolean)
-- index: cohorts_pkey
SELECT
    EXISTS (
        SELECT 1 AS one FROM audit_found
        WHERE part = 'session' AND facts ->> 'plan' = %(plan_id)s
    )
    OR NOT EXISTS (
        SELECT 1 AS one
        FROM queuekeeper.cohorts AS c
        INNER JOIN queuekeeper.plans AS p ON c.plan_id = p.plan_id AND c.cohort = any(p.chosen)
        WHERE c.plan_id = %(plan_id)s AND (c.to_copy > 0 OR c.sessions > 0)
    ) AS is_of_plan;

-- name: recount
-- Say what became of each row of the source by the rules of docs/migration.md ("What moves"): from the source, the
-- quarantine and what RDB files hold, and from nothing that the copy or the verification has counted.
-- params: plan_id, taken_at_ms
-- rows: none
-- index: none; reads both tables of the source whole
INSERT INTO audit_lines
WITH plan AS (
    SELECT
        p.plan_id,
        p.as_of_ms,
        p.chosen,
        coalesce(p.target_clustered, FALSE) AS is_cluster,
        (p.parameters ->> 'limit')::int AS most,
        (p.parameters ->> 'default_ttl_s')::bigint AS default_ttl_s,
        CASE coalesce(p.parameters ->> 'layout', 'tbmq') WHEN 'packed' THEN 4294967295 ELSE 2147483647 END
            AS longest_interval_s,
        -- What is still in the file may end within the second in which the file was begun.
        %(taken_at_ms)s::bigint + 999 AS gone_ms,
        (
            SELECT 1000 * extract(EPOCH FROM max(r.created_at))
            FROM queuekeeper.copy_reports AS r
            WHERE r.plan_id = p.plan_id
        ) AS copied_at_ms
    FROM queuekeeper.plans AS p
    WHERE p.plan_id = %(plan_id)s
),

slots AS MATERIALIZED (
    SELECT
        known.client_id,
        -- An empty id has no keys; its rows are counted with the first slot.
        CASE WHEN known.client_id = '' THEN 0 ELSE queuekeeper.key_slot(known.client_id) END AS slot
    FROM (
        SELECT client_id::text FROM device_publish_msg
        UNION
        SELECT client_id::text FROM device_session_ctx
    ) AS known
),

-- Clients of the cohorts that were to be copied.
clients AS MATERIALIZED (
    SELECT
        s.client_id,
        c.cohort,
        CASE
            WHEN s.client_id = '' THEN 'client_id_empty'
            WHEN plan.is_cluster AND left(s.client_id, 1) = '}' THEN 'client_id_scattered'
        END AS defect
    FROM slots AS s
    CROSS JOIN plan
    INNER JOIN queuekeeper.cohorts AS c
        ON
            plan.plan_id = c.plan_id
            AND c.cohort = any(plan.chosen)
            AND s.slot BETWEEN c.slot_first AND c.slot_last
),

quarantine AS MATERIALIZED (
    SELECT q.*
    FROM queuekeeper.quarantine AS q
    INNER JOIN plan ON q.plan_id = plan.plan_id AND q.cohort = any(plan.chosen)
),

-- Rows of the source, and mended rows of the quarantine that were put into their sessions.
messages AS (
    SELECT
        FALSE AS is_replayed,
        client_id::text,
        serial_number,
        packet_id::bigint,
        topic,
        time,
        packet_type,
        qos,
        sha256(payload) AS payload_sha256,
        octet_length(payload) AS payload_bytes,
        user_properties,
        retain,
        msg_expiry_interval,
        payload_format_indicator,
        content_type,
        response_topic,
        encode(sha256(correlation_data), 'hex') AS correlation_sha256,
        coalesce(octet_length(correlation_data), 0) AS correlation_bytes
    FROM device_publish_msg
    UNION ALL
    SELECT
        TRUE AS is_replayed,
        client_id,
        serial_number,
        coalesce(assigned_packet_id, packet_id) AS packet_id,
        topic,
        time,
        packet_type,
        qos,
        sha256(payload) AS payload_sha256,
        octet_length(payload) AS payload_bytes,
        user_properties,
        retain,
        msg_expiry_interval,
        payload_format_indicator,
        content_type,
        response_topic,
        encode(sha256(correlation_data), 'hex') AS correlation_sha256,
        coalesce(octet_length(correlation_data), 0) AS correlation_bytes
    FROM quarantine
    WHERE kind = 'message' AND status = 'replayed'
),

-- The interval is unsigned, in a signed column. Pairs are null where user properties are not written as TBMQ writes
-- them: whether such can be read, the quarantine says.
measured AS (
    SELECT
        m.*,
        c.cohort,
        c.defect,
        m.msg_expiry_interval + CASE WHEN m.msg_expiry_interval < 0 THEN 4294967296 ELSE 0 END AS interval_s,
        CASE
            WHEN m.user_properties IS NULL THEN '[]'::jsonb
            WHEN
                m.user_properties ~ replace(
                    '^\{"props":\[(\{"k":"TEXT","v":"TEXT"\}(,\{"k":"TEXT","v":"TEXT"\})*)?\]\}$',
                    'TEXT',
                    '([^"\\[:cntrl:]]|\\["\\/bfnrt]|\\u(?!0000|[dD][89a-fA-F])[0-9a-fA-F]{4})*'
                )
                THEN m.user_properties::jsonb -> 'props'
        END AS pairs
    FROM messages AS m
    INNER JOIN clients AS c ON m.client_id = c.client_id
),

judged AS MATERIALIZED (
    SELECT
        m.*,
        m.time::numeric + 1000 * coalesce(m.interval_s, plan.default_ttl_s) AS ends_ms,
        CASE
            WHEN m.defect IS NOT NULL THEN m.defect
            WHEN m.serial_number NOT BETWEEN 0 AND 9007199254740991 THEN 'serial_out_of_range'
            WHEN m.packet_id IS NULL OR m.packet_id NOT BETWEEN 1 AND 65535 THEN 'packet_id_out_of_range'
            WHEN m.topic = '' THEN 'topic_empty'
            WHEN octet_length(m.topic) > 65535 THEN 'topic_invalid'
            WHEN m.packet_type IS NULL OR m.packet_type NOT IN ('PUBLISH', 'PUBREL') THEN 'packet_type_unknown'
            WHEN m.qos NOT BETWEEN 1 AND 2 THEN 'qos_out_of_range'
            WHEN m.time NOT BETWEEN 0 AND 253402300799999 THEN 'time_out_of_range'
            WHEN p.longest > 65535 OR (m.pairs IS NULL AND q.reason IS NOT NULL) THEN 'user_properties_invalid'
            WHEN m.payload_format_indicator NOT BETWEEN 0 AND 1 THEN 'payload_format_invalid'
            WHEN octet_length(m.content_type) > 65535 THEN 'content_type_invalid'
            WHEN octet_length(m.response_topic) > 65535 THEN 'response_topic_invalid'
            WHEN m.correlation_bytes > 65535 THEN 'correlation_data_too_long'
            -- MQTT's own bytes of a PUBLISH are 27, and 5 of each pair.
            WHEN
                27 + m.payload_bytes + octet_length(m.topic) + coalesce(octet_length(m.content_type), 0)
                + coalesce(octet_length(m.response_topic), 0) + m.correlation_bytes + p.bytes > 268435455
                THEN 'packet_too_large'
        END AS reason
    FROM measured AS m
    CROSS JOIN plan
    CROSS JOIN
        LATERAL (
            SELECT
                coalesce(sum(5 + octet_length(pair ->> 'k') + octet_length(pair ->> 'v')), 0) AS bytes,
                max(greatest(octet_length(pair ->> 'k'), octet_length(pair ->> 'v'))) AS longest
            FROM jsonb_array_elements(m.pairs) AS pair
        ) AS p
    LEFT JOIN quarantine AS q
        ON
            m.client_id = q.client_id
            AND m.serial_number = q.serial_number
            AND q.kind = 'message'
            AND q.reason = 'user_properties_invalid'
),

-- Of messages that live when the plan is made, the newest of a packet id stays; of those, the newest up to the limit.
queued AS (
    SELECT
        j.*,
        j.reason IS NULL AND j.ends_ms > plan.as_of_ms AS is_live,
        row_number() OVER (
            PARTITION BY j.client_id, j.packet_id, j.reason IS NULL AND j.ends_ms > plan.as_of_ms
            ORDER BY j.serial_number DESC
        ) > 1 AS is_repeated,
        plan.most
    FROM judged AS j
    CROSS JOIN plan
    WHERE NOT j.is_replayed
),

ranked AS (
    SELECT
        q.*,
        count(*) FILTER (WHERE q.is_live AND NOT q.is_repeated) OVER (
            PARTITION BY q.client_id ORDER BY q.serial_number DESC
        ) AS place
    FROM queued AS q
),

planned AS MATERIALIZED (
    SELECT
        r.client_id,
        r.serial_number,
        r.packet_id,
        r.cohort,
        CASE WHEN r.is_live AND r.is_repeated THEN 'packet_id_duplicate' ELSE r.reason END AS reason,
        CASE
            WHEN r.reason IS NOT NULL OR (r.is_live AND r.is_repeated) THEN 'quarantined'
            WHEN NOT r.is_live THEN 'expired'
            WHEN r.place > r.most THEN 'trimmed'
            ELSE 'copied'
        END AS fate
    FROM ranked AS r
),

-- What Redis ought to hold. A mended message may have a place that no row of the source has.
expected AS MATERIALIZED (
    SELECT
        j.cohort,
        j.client_id,
        j.serial_number,
        j.packet_id,
        j.ends_ms,
        j.payload_sha256,
        p.client_id IS NOT NULL AS is_row,
        j.pairs IS NOT NULL AS has_pairs,
        jsonb_strip_nulls(jsonb_build_object(
            'clientId', j.client_id,
            'topicName', j.topic,
            'time', j.time,
            'qos', j.qos,
            'packetId', j.packet_id,
            'packetType', j.packet_type,
            'retained', coalesce(j.retain, FALSE),
            'msgExpiryInterval',
            CASE WHEN j.interval_s IS NOT NULL THEN least(j.interval_s, plan.longest_interval_s) END,
            'payloadFormatIndicator', j.payload_format_indicator,
            'contentType', j.content_type,
            'responseTopic', j.response_topic,
            'correlationData', j.correlation_sha256,
            'userProperties',
            CASE WHEN jsonb_array_length(j.pairs) > 0 THEN jsonb_build_object('props', j.pairs) END
        )) AS facts
    FROM judged AS j
    CROSS JOIN plan
    LEFT JOIN planned AS p
        ON
            j.client_id = p.client_id
            AND j.serial_number = p.serial_number
            AND p.fate = CASE WHEN j.is_replayed THEN 'quarantined' ELSE 'copied' END
    WHERE j.is_replayed OR p.client_id IS NOT NULL
),

-- Messages in the files: of TBMQ's layout a payload and the reference to it, of a packed session a record.
found AS MATERIALIZED (
    SELECT
        p.found_id,
        p.client_id,
        p.packet_id,
        p.expires_at_ms,
        p.payload_sha256,
        p.facts,
        coalesce(r.serial_number, p.serial_number) AS serial_number
    FROM audit_found AS p
    LEFT JOIN audit_found AS r
        ON
            p.part = 'payload'
            AND r.part = 'reference'
            AND p.client_id = r.client_id
            AND p.packet_id = r.packet_id
    WHERE p.part IN ('payload', 'record')
),

-- A session that others have used since its import, or before: it is left as it is.
states AS MATERIALIZED (
    SELECT
        f.client_id,
        max(f.facts ->> 'import') AS progress,
        max(f.facts ->> 'lastPacketId') AS last_packet_id,
        coalesce(bool_or(f.facts ? 'used'), FALSE)
        OR coalesce(max(f.facts ->> 'plan') != max(plan.plan_id), bool_or(f.part != 'session')) AS is_used,
        max(f.facts ->> 'plan') = max(plan.plan_id) AS is_of_plan
    FROM audit_found AS f
    CROSS JOIN plan
    WHERE f.part != 'payload'
    GROUP BY f.client_id
),

-- Each message that ought to be there, beside what is there under its packet id.
matched AS MATERIALIZED (
    SELECT DISTINCT ON (e.client_id, e.serial_number)
        e.*,
        f.found_id,
        f.serial_number AS found_serial_number,
        f.expires_at_ms AS found_ends_ms,
        f.payload_sha256 AS found_payload_sha256,
        CASE WHEN e.has_pairs THEN f.facts ELSE f.facts - 'userProperties' END AS found_facts,
        coalesce(s.is_used, FALSE) AS is_used
    FROM expected AS e
    LEFT JOIN found AS f ON e.client_id = f.client_id AND e.packet_id = f.packet_id
    LEFT JOIN states AS s ON e.client_id = s.client_id
    ORDER BY e.client_id, e.serial_number, f.serial_number = e.serial_number DESC NULLS LAST
),

compared AS (
    SELECT
        m.*,
        d.differences,
        CASE
            WHEN m.is_used THEN 'superseded'
            WHEN m.found_id IS NULL THEN CASE WHEN m.ends_ms <= plan.gone_ms THEN 'expired' ELSE 'missing' END
            WHEN d.differences = '{}' THEN 'copied'
            ELSE 'different'
        END AS fate
    FROM matched AS m
    CROSS JOIN plan
    CROSS JOIN LATERAL (
        SELECT coalesce(jsonb_object_agg(each.kind, ARRAY[each.expected, each.found]), '{}') AS differences
        FROM (
            VALUES
            ('missing', m.found_id IS NULL AND m.ends_ms > plan.gone_ms, 'a message', 'nothing'),
            ('unreadable', m.found_id IS NOT NULL AND m.found_facts IS NULL, 'a message', 'something else'),
            (
                'order',
                m.found_facts IS NOT NULL AND m.found_serial_number IS DISTINCT FROM m.serial_number::double precision,
                m.serial_number::text,
                coalesce(m.found_serial_number::text, 'no place in the queue')
            ),
            (
                'payload',
                m.found_facts IS NOT NULL AND m.found_payload_sha256 IS DISTINCT FROM m.payload_sha256,
                left(encode(m.payload_sha256, 'hex'), 12),
                coalesce(left(encode(m.found_payload_sha256, 'hex'), 12), 'none')
            ),
            (
                'properties',
                m.found_facts != m.facts,
                'those of the row',
                CASE WHEN m.found_facts != m.facts THEN (
                    SELECT 'others: ' || string_agg(coalesce(a.key, b.key), ', ' ORDER BY coalesce(a.key, b.key))
                    FROM jsonb_each(m.facts) AS a
                    FULL JOIN jsonb_each(m.found_facts) AS b ON a.key = b.key
                    WHERE a.value IS DISTINCT FROM b.value
                ) END
            ),
            (
                -- A cluster that moves a key makes its life longer by the time of the move.
                'expiry',
                m.found_facts IS NOT NULL
                AND m.found_ends_ms - m.ends_ms NOT BETWEEN 0 AND CASE WHEN plan.is_cluster THEN 60000 ELSE 0 END,
                m.ends_ms::text,
                CASE m.found_ends_ms WHEN -1 THEN 'never' ELSE m.found_ends_ms::text END
            )
        ) AS each (kind, differs, expected, found)
        WHERE each.differs AND NOT m.is_used
    ) AS d
),

-- To the ledger, what ended before the verification is expired, and what ended behind it was still there. Clocks may be
-- a minute apart.
fates AS (
    SELECT
        c.cohort,
        c.client_id,
        c.serial_number,
        c.packet_id,
        c.is_row,
        c.differences,
        CASE
            WHEN c.fate NOT IN ('copied', 'expired') THEN c.fate
            WHEN c.ends_ms <= l.verified_at_ms THEN 'expired'
            ELSE 'copied'
        END AS fate,
        c.fate IN ('copied', 'expired')
        AND c.ends_ms BETWEEN plan.copied_at_ms - 60000 AND l.verified_at_ms + 60000 AS is_either
    FROM compared AS c
    CROSS JOIN plan
    LEFT JOIN queuekeeper.ledger AS l ON plan.plan_id = l.plan_id AND c.cohort = l.cohort
),

-- The last packet id goes with the session's row unless a message is newer than that; then it passes what waits.
newest AS (
    SELECT DISTINCT ON (client_id)
        client_id,
        serial_number,
        packet_id
    FROM judged
    WHERE NOT is_replayed AND reason IS NULL
    ORDER BY client_id ASC, serial_number DESC
),

waiting AS (
    SELECT
        client_id,
        count(DISTINCT packet_id) AS in_use,
        (array_agg(packet_id ORDER BY serial_number DESC))[1] AS newest
    FROM expected
    GROUP BY client_id
),

replays AS (
    SELECT DISTINCT ON (client_id)
        client_id,
        assigned_packet_id
    FROM quarantine
    WHERE kind = 'message' AND status = 'replayed' AND assigned_packet_id IS NOT NULL
    ORDER BY client_id ASC, replayed_at DESC, quarantine_id DESC
),

given AS (
    SELECT
        c.client_id,
        c.cohort,
        w.in_use,
        w.newest,
        coalesce(
            r.assigned_packet_id,
            CASE
                WHEN
                    ctx.last_packet_id BETWEEN 1 AND 65535
                    AND coalesce(n.serial_number, -1) <= coalesce(ctx.last_serial_number, -1)
                    THEN ctx.last_packet_id
                ELSE n.packet_id
            END
        ) AS packet_id
    FROM clients AS c
    LEFT JOIN device_session_ctx AS ctx ON c.client_id = ctx.client_id
    LEFT JOIN newest AS n ON c.client_id = n.client_id
    LEFT JOIN waiting AS w ON c.client_id = w.client_id
    LEFT JOIN replays AS r ON c.client_id = r.client_id
    WHERE c.defect IS NULL AND (ctx.client_id IS NOT NULL OR w.client_id IS NOT NULL)
),

begun AS (
    SELECT
        g.*,
        CASE
            WHEN g.packet_id IS NULL OR mod(g.newest - g.packet_id + 65535, 65535) BETWEEN 1 AND 32767 THEN g.newest
            ELSE g.packet_id
        END AS first
    FROM given AS g
),

-- How many packet ids behind the first one are in use without a gap.
passed AS (
    SELECT
        ahead.client_id,
        count(*) AS steps
    FROM (
        SELECT
            b.client_id,
            1 + mod(e.packet_id - b.first - 1 + 65535, 65535) AS step,
            row_number() OVER (
                PARTITION BY b.client_id ORDER BY mod(e.packet_id - b.first - 1 + 65535, 65535)
            ) AS place
        FROM begun AS b
        INNER JOIN (SELECT DISTINCT
            client_id,
            packet_id
        FROM expected) AS e ON b.client_id = e.client_id
    ) AS ahead
    WHERE ahead.step = ahead.place
    GROUP BY ahead.client_id
),

sessions AS (
    SELECT
        b.client_id,
        b.cohort,
        s.last_packet_id AS found,
        s.progress,
        coalesce(s.is_used, FALSE) AS is_used,
        CASE
            WHEN b.newest IS NULL THEN b.packet_id
            WHEN b.in_use >= 65535 THEN coalesce(b.packet_id, b.newest)
            ELSE 1 + mod(b.first + coalesce(p.steps, 0) - 1, 65535)
        END AS expected
    FROM begun AS b
    LEFT JOIN passed AS p ON b.client_id = p.client_id
    LEFT JOIN states AS s ON b.client_id = s.client_id
),

compared_sessions AS (
    SELECT
        s.cohort,
        s.client_id,
        s.is_used,
        d.differences
    FROM sessions AS s
    CROSS JOIN LATERAL (
        SELECT coalesce(jsonb_object_agg(each.kind, ARRAY[each.expected, each.found]), '{}') AS differences
        FROM (
            VALUES
            (
                'last_packet_id',
                coalesce(s.expected, 0)::text != coalesce(s.found, '0'),
                coalesce(s.expected::text, 'none'),
                coalesce(s.found, 'none')
            ),
            ('session_missing', s.progress IS DISTINCT FROM 'done', 'done', coalesce(s.progress, 'nothing'))
        ) AS each (kind, differs, expected, found)
        WHERE each.differs AND NOT s.is_used
    ) AS d
),

-- What ought to be in the quarantine, and what is. Where the client or the serial of a row was mended there, another
-- row of the same reason stands for it.
unfit AS (
    SELECT
        'message' AS kind,
        cohort,
        client_id,
        serial_number,
        packet_id,
        reason
    FROM planned
    WHERE reason IS NOT NULL
    UNION ALL
    SELECT
        'session' AS kind,
        c.cohort,
        c.client_id,
        -1 AS serial_number,
        NULL AS packet_id,
        coalesce(c.defect, 'last_packet_id_out_of_range') AS reason
    FROM clients AS c
    INNER JOIN device_session_ctx AS ctx ON c.client_id = ctx.client_id
    WHERE c.defect IS NOT NULL OR ctx.last_packet_id NOT BETWEEN 0 AND 65535
),

aside AS (
    SELECT
        u.reason AS expected,
        q.reason AS found,
        coalesce(u.kind, q.kind) AS kind,
        coalesce(u.cohort, q.cohort) AS cohort,
        coalesce(u.client_id, q.client_id) AS client_id,
        nullif(coalesce(u.serial_number, q.serial_number), -1) AS serial_number,
        coalesce(u.packet_id, q.packet_id) AS packet_id
    FROM unfit AS u
    FULL JOIN quarantine AS q
        ON u.kind = q.kind AND u.client_id = q.client_id AND u.serial_number = coalesce(q.serial_number, -1)
    WHERE u.reason IS DISTINCT FROM q.reason
),

paired AS (
    SELECT
        a.*,
        row_number() OVER (
            PARTITION BY a.kind, a.cohort, coalesce(a.expected, a.found), a.expected IS NULL, a.found IS NULL
            ORDER BY a.client_id, a.serial_number
        ) AS place,
        count(*) FILTER (WHERE a.expected IS NULL) OVER (PARTITION BY a.kind, a.cohort, coalesce(a.expected, a.found))
            AS strays,
        count(*) FILTER (WHERE a.found IS NULL) OVER (PARTITION BY a.kind, a.cohort, coalesce(a.expected, a.found))
            AS gaps
    FROM aside AS a
)

SELECT
    p.cohort,
    'row' AS subject,
    p.client_id,
    p.serial_number,
    p.packet_id,
    p.fate,
    FALSE AS is_either,
    '{}'::jsonb AS differences
FROM planned AS p
LEFT JOIN expected AS e ON p.client_id = e.client_id AND p.serial_number = e.serial_number
WHERE e.client_id IS NULL
UNION ALL
SELECT
    c.cohort,
    CASE WHEN c.is_row THEN 'row' ELSE 'message' END AS subject,
    c.client_id,
    c.serial_number,
    c.packet_id,
    c.fate,
    c.is_either,
    c.differences
FROM fates AS c
UNION ALL
SELECT
    c.cohort,
    'message' AS subject,
    f.client_id,
    CASE WHEN abs(f.serial_number) < 9007199254740992 THEN f.serial_number::bigint END AS serial_number,
    f.packet_id,
    NULL AS fate,
    FALSE AS is_either,
    jsonb_build_object('unexpected', ARRAY[
        coalesce(p.fate, 'nothing'),
        CASE WHEN f.serial_number IS NULL THEN 'a payload that no reference names' ELSE 'a message' END
    ]) AS differences
FROM found AS f
INNER JOIN clients AS c ON f.client_id = c.client_id
LEFT JOIN matched AS m ON f.found_id = m.found_id
LEFT JOIN states AS s ON f.client_id = s.client_id
LEFT JOIN planned AS p ON f.client_id = p.client_id AND f.serial_number = p.serial_number
WHERE m.found_id IS NULL AND s.is_used IS NOT TRUE
UNION ALL
SELECT
    s.cohort,
    'session' AS subject,
    s.client_id,
    NULL AS serial_number,
    NULL AS packet_id,
    CASE WHEN NOT s.is_used AND s.differences = '{}' THEN 'copied' END AS fate,
    FALSE AS is_either,
    s.differences
FROM compared_sessions AS s
UNION ALL
SELECT
    c.cohort,
    'message' AS subject,
    s.client_id,
    NULL AS serial_number,
    NULL AS packet_id,
    NULL AS fate,
    FALSE AS is_either,
    jsonb_build_object('unexpected', ARRAY['nothing', 'a session of this plan']) AS differences
FROM states AS s
CROSS JOIN plan
INNER JOIN queuekeeper.cohorts AS c
    ON plan.plan_id = c.plan_id AND queuekeeper.key_slot(s.client_id) BETWEEN c.slot_first AND c.slot_last
LEFT JOIN slots ON s.client_id = slots.client_id
WHERE s.is_of_plan AND slots.client_id IS NULL
UNION ALL
SELECT
    p.cohort,
    'quarantine' AS subject,
    p.client_id,
    p.serial_number,
    p.packet_id,
    NULL AS fate,
    FALSE AS is_either,
    jsonb_build_object(
        'quarantine', ARRAY[coalesce(p.expected, 'no such row'), coalesce(p.found, 'nothing')]
    ) AS differences
FROM paired AS p
WHERE
    (p.expected IS NOT NULL AND p.found IS NOT NULL)
    OR (p.expected IS NULL AND p.place > p.gaps)
    OR (p.found IS NULL AND p.place > p.strays);

-- name: audit_numbers
-- Set what was recounted beside the ledger, cohort by cohort: fates of rows, then differences by their kind.
-- params: plan_id
-- rows: (cohort, name, number of the ledger, number recounted, whether they agree); null for what the ledger lacks
-- index: ledger_pkey, difference_counts_pkey
WITH ledger AS (
    SELECT
        w.cohort,
        l.copied + l.expired AS lived,
        to_jsonb(l) || coalesce(
            (
                SELECT jsonb_object_agg(d.kind, d.found)
                FROM queuekeeper.difference_counts AS d
                WHERE d.plan_id = p.plan_id AND d.cohort = w.cohort
            ),
            '{}'
        ) AS numbers
    FROM queuekeeper.plans AS p
    CROSS JOIN unnest(p.chosen) AS w (cohort)
    LEFT JOIN queuekeeper.ledger AS l ON p.plan_id = l.plan_id AND w.cohort = l.cohort
    WHERE p.plan_id = %(plan_id)s
),

fates AS (
    SELECT
        cohort,
        count(*) FILTER (WHERE subject = 'row') AS rows_seen,
        count(*) FILTER (WHERE subject = 'row' AND fate = 'copied') AS copied,
        count(*) FILTER (WHERE subject = 'row' AND fate = 'expired') AS expired,
        count(*) FILTER (WHERE fate = 'trimmed') AS trimmed,
        count(*) FILTER (WHERE subject = 'row' AND fate = 'superseded') AS superseded,
        count(*) FILTER (WHERE fate = 'quarantined') AS quarantined,
        count(*) FILTER (WHERE subject = 'row' AND fate IN ('missing', 'different')) AS unaccounted,
        count(*) FILTER (WHERE subject = 'session') AS sessions_seen,
        count(*) FILTER (WHERE subject = 'session' AND fate = 'copied') AS sessions_copied,
        count(*) FILTER (WHERE subject = 'row' AND is_either) AS either
    FROM audit_lines
    GROUP BY cohort
),

kinds AS (
    SELECT
        k.cohort,
        sum(k.found) AS differences,
        jsonb_object_agg(k.kind, k.found) AS numbers
    FROM (
        SELECT
            l.cohort,
            d.key AS kind,
            count(*) AS found
        FROM audit_lines AS l
        CROSS JOIN LATERAL jsonb_each(l.differences) AS d
        WHERE l.subject != 'quarantine'
        GROUP BY l.cohort, d.key
    ) AS k
    GROUP BY k.cohort
),

numbers AS (
    SELECT
        l.cohort,
        n.place,
        n.name,
        coalesce((l.numbers ->> n.name)::bigint, CASE WHEN n.place > 10 THEN 0 END) AS ledger,
        coalesce(
            CASE
                WHEN n.name = 'differences' THEN k.differences
                ELSE (coalesce(to_jsonb(f), '{}') || coalesce(k.numbers, '{}') ->> n.name)::bigint
            END,
            0
        ) AS recounted,
        CASE WHEN n.name IN ('copied', 'expired') AND l.lived = f.copied + f.expired THEN f.either ELSE 0 END AS either
    FROM ledger AS l
    LEFT JOIN fates AS f ON l.cohort = f.cohort
    LEFT JOIN kinds AS k ON l.cohort = k.cohort
    CROSS JOIN unnest(ARRAY[
        'rows_seen', 'copied', 'expired', 'trimmed', 'superseded', 'quarantined', 'unaccounted', 'sessions_seen',
        'sessions_copied', 'differences', 'missing', 'unexpected', 'unreadable', 'order', 'payload', 'properties',
        'expiry', 'last_packet_id', 'session_missing'
    ]) WITH ORDINALITY AS n (name, place)
)

SELECT
    cohort,
    name,
    ledger,
    recounted,
    coalesce(abs(ledger - recounted) <= either, FALSE) AS agrees
FROM numbers
ORDER BY cohort, place;

-- name: audit_findings
-- List what differs by its kind, with examples.
-- params: examples
-- rows: (kind, how many there are, cohort, client_id, serial number, packet id, what was expected, what was found)
-- index: none
SELECT
    f.kind,
    f.total,
    f.cohort,
    f.client_id,
    f.serial_number,
    f.packet_id,
    f.expected,
    f.found
FROM (
    SELECT
        d.key AS kind,
        l.cohort,
        l.client_id,
        l.serial_number,
        l.packet_id,
        d.value ->> 0 AS expected,
        d.value ->> 1 AS found,
        count(*) OVER (PARTITION BY d.key) AS total,
        row_number() OVER (PARTITION BY d.key ORDER BY l.cohort, l.client_id, l.serial_number) AS place
    FROM audit_lines AS l
    CROSS JOIN LATERAL jsonb_each(l.differences) AS d
) AS f
WHERE f.place <= %(examples)s
ORDER BY f.kind, f.place;

-- name: audit_elsewhere
-- Count the sessions in the files that the source does not have; whose they are, an audit cannot know.
-- params: none
-- rows: one: (sessions)
-- index: device_publish_msg_pkey, device_session_ctx_pkey
SELECT count(DISTINCT f.client_id) AS sessions
FROM audit_found AS f
WHERE
    NOT EXISTS (
        SELECT 1 AS one FROM device_publish_msg AS m
        WHERE m.client_id = f.client_id
    )
    AND NOT EXISTS (
        SELECT 1 AS one FROM device_session_ctx AS s
        WHERE s.client_id = f.client_id
    );
