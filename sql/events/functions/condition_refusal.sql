-- Return why a condition may not be stored, in words that say what to do, or NULL when it may.
-- PostgreSQL itself judges it. It parses the condition in two kinds of brackets: a text that fits between both is one
-- expression, and closes nothing that it has not opened. A cursor takes one query and no more, and executes none of it
-- here. Then it makes a rule of the condition, whose tree names every function, operator, type and relation by number,
-- whatever the condition calls them; what no look at one event and one subscription needs is refused.
-- Belongs to role pgmb_reader. Reading a literal can call functions of whoever made its type, so all of it happens in a
-- block that is rolled back in any case: the rule is gone, and whatever else was done has not been.
-- needs: judged_condition
-- owner: pgmb_reader
CREATE FUNCTION pgmb.condition_refusal(condition text)
RETURNS text
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path TO pgmb, pg_catalog, pg_temp
SET timezone TO 'UTC'
SET standard_conforming_strings TO on -- as match_condition reads strings
SET lock_timeout TO '5s'
AS $function$
DECLARE
    longest CONSTANT int := 8000;
    first_made CONSTANT oid := 16384; -- smaller numbers are those of the server's own objects
    -- What a condition may look at; the columns that match_condition has besides are none of its business.
    scope CONSTANT text :=
        ' FROM (SELECT u.id, u.topic, u.payload, u.metadata, u.subscription_id FROM unnest(NULL::pgmb.events[]) AS u) AS e'
        ' CROSS JOIN (SELECT u.id, u.group_id, u.conditions_sql, u.params, u.identity, u.last_active_at,'
        ' u.expiry_interval, u.created_at FROM unnest(NULL::pgmb.subscriptions[]) AS u) AS s';
    nodes CONSTANT text[] := string_to_array(
        'QUERY RANGETBLENTRY RTEPERMISSIONINFO ALIAS RANGETBLREF RANGETBLFUNCTION FROMEXPR JOINEXPR TARGETENTRY '
        'SORTGROUPCLAUSE SUBLINK PARAM VAR CONST FUNCEXPR NAMEDARGEXPR OPEXPR DISTINCTEXPR NULLIFEXPR SCALARARRAYOPEXPR '
        'BOOLEXPR RELABELTYPE COERCEVIAIO ARRAYCOERCEEXPR COERCETODOMAIN COLLATE COLLATEEXPR CASE CASEEXPR WHEN CASEWHEN '
        'CASETESTEXPR ARRAY ARRAYEXPR COALESCE COALESCEEXPR MINMAX MINMAXEXPR NULLTEST BOOLEANTEST SUBSCRIPTINGREF AGGREF '
        'SQLVALUEFUNCTION', ' '
    );
    -- They look names up, look beyond the event, or stand for what only functions handle.
    foreign_types CONSTANT text :=
        '^(_?reg[a-z]+|_?oid|_?name|_?xml|_?aclitem|_?pg_.+|_?txid_snapshot|refcursor|cstring|internal|trigger|.+_handler)$';
    -- Their result can be many times as long as what they are given, or takes that long.
    multiplying CONSTANT text[] := string_to_array(
        'repeat lpad rpad format replace regexp_replace array_to_string array_fill array_replace generate_series '
        'generate_subscripts power pow dpow numeric_power exp numeric_exp factorial', ' '
    );
    -- They tell of the server, the session or other tables.
    telling CONSTANT text :=
        '^((pg|has|txid|lo|ts|xml|inet_client|inet_server|query_to|table_to|schema_to|database_to|cursor_to)_.*'
        '|xpath.*|current_.*|session_user|system_user|version|row_security_active|to_reg.*|.*_description)$';
    own CONSTANT text[] := ARRAY['hashtext', 'create_event_id', 'extract_date_from_event_id'];
    patterns CONSTANT text := '^(regexp_.*|.*regex(eq|ne)|substring|similar_.*|jsonb_path_.*)$';
    trial refcursor;
    tree text;
    words text;
    code text;
    matches_patterns boolean := FALSE;
    item record;
BEGIN
    IF condition IS NULL OR btrim(condition, E' \t\n\r\f\v') = '' THEN
        RETURN 'the condition is empty: write TRUE to match every event';
    END IF;
    IF length(condition) > longest THEN
        RETURN concat(
            'the condition has ', length(condition), ' characters, more than ', longest,
            ': put what differs between subscriptions into params'
        );
    END IF;
    BEGIN
        OPEN trial FOR EXECUTE 'SELECT' || scope || E' WHERE FALSE AND (ARRAY[\n' || condition || E'\n])[1]';
        CLOSE trial;
        OPEN trial FOR EXECUTE 'SELECT' || scope || E' WHERE FALSE AND (\n' || condition || E'\n)';
        CLOSE trial;
        EXECUTE
            E'CREATE RULE judged AS ON INSERT TO pgmb.judged_condition DO INSTEAD SELECT (\n' || condition
            || E'\n) AS holds' || scope;
        -- A copy: what the catalog holds out of line may be vacuumed as soon as the rule is rolled back.
        tree := (
            SELECT r.ev_action::text || '' FROM pg_rewrite AS r
            WHERE r.ev_class = 'pgmb.judged_condition'::regclass AND r.rulename = 'judged'
        );
        RAISE EXCEPTION USING ERRCODE = 'triggered_action_exception';
    EXCEPTION
        WHEN triggered_action_exception THEN
            NULL; -- rolled back, the tree is kept
        WHEN OTHERS THEN
            GET STACKED DIAGNOSTICS words = MESSAGE_TEXT, code = RETURNED_SQLSTATE;
            -- Want of a connection, memory or a lock, deadlocks, operators, the system and rights are no fault of a condition.
            IF left(code, 2) IN ('08', '40', '53', '55', '57', '58', 'XX') OR code = '42501' THEN
                RAISE;
            END IF;
            RETURN concat(
                CASE WHEN code IN ('42601', '42P11') THEN 'it is not one expression: ' END,
                coalesce(nullif(words, ''), code),
                CASE WHEN code = '42703' THEN ': columns are written e.topic or s.params, text stands between single quotes' END
            );
    END;
    IF tree IS NULL THEN
        RETURN 'it cannot be judged';
    END IF;

    -- The kinds of nodes, then what the tree names by number. Names that the condition gives are escaped there.
    FOR item IN
        SELECT DISTINCT t.parts[1] AS node FROM regexp_matches(tree, '[{]([A-Z_]+)', 'g') AS t(parts)
        WHERE t.parts[1] <> ALL(nodes)
    LOOP
        RETURN CASE item.node
            WHEN 'SETOPERATIONSTMT' THEN 'it holds a set operation: join two conditions with AND or OR'
            WHEN 'COMMONTABLEEXPR' THEN 'it holds WITH: write the sub-select where it is used'
            ELSE concat('it holds ', item.node, ', which is more than a condition may: compare columns of e and s')
        END;
    END LOOP;
    IF tree ~ ':varattno 0 ' THEN
        RETURN 'it uses a whole row: name a column, such as e.topic or s.params';
    END IF;
    -- The view itself is there twice, as OLD and NEW of the rule.
    SELECT t.parts[1]::oid::regclass AS relation INTO item
    FROM regexp_matches(tree, ':rtekind 0 :relid ([0-9]+)', 'g') WITH ORDINALITY AS t(parts, number)
    WHERE t.number > 2
    LIMIT 1;
    IF FOUND THEN
        RETURN concat(
            'it holds a sub-select over ', item.relation, ': it may look only at the event e and the subscription s'
        );
    END IF;
    IF tree ~ ':hasTargetSRFs false [^{]*:rtable <>' OR tree ~ ':rtekind ([4-8]|[0-9]{2})' THEN
        RETURN 'it holds a sub-select that is not over a function of e or s, such as jsonb_array_elements(e.payload)';
    END IF;
    SELECT y.oid::regtype AS type INTO item
    FROM (
        SELECT t.parts[1]::oid AS oid FROM regexp_matches(tree, ':[a-z_]*type[a-z]* ([0-9]+)', 'g') AS t(parts)
        UNION
        SELECT listed.oid::oid
        FROM regexp_matches(tree, ':[a-z]*types [(]o ([0-9 ]+)[)]', 'g') AS t(parts)
        CROSS JOIN LATERAL string_to_table(t.parts[1], ' ') AS listed(oid)
    ) AS used
    INNER JOIN pg_type AS y ON y.oid = used.oid
    WHERE
        y.typnamespace <> 'pgmb'::regnamespace
        AND (y.typnamespace <> 'pg_catalog'::regnamespace OR y.oid >= first_made OR y.typname ~ foreign_types)
    LIMIT 1;
    IF FOUND THEN
        RETURN concat('type ', item.type, ' may not be used in a condition: compare text, numbers, times or jsonb');
    END IF;
    IF EXISTS (
        SELECT FROM regexp_matches(tree, ':(?:opno|eqop|sortop|[a-z]*collid|collOid) ([0-9]+)', 'g') AS t(parts)
        WHERE t.parts[1]::oid >= first_made
    ) THEN
        RETURN 'it names an operator or a collation that somebody has made: only those of pg_catalog may be used';
    END IF;
    FOR item IN
        SELECT
            p.oid, p.oid::regprocedure AS signature, p.proname, p.provolatile, n.nspname,
            p.oid < first_made AND p.prokind IN ('f', 'a') AND l.lanname IN ('internal', 'sql') AND p.proname !~ telling
            AND NOT EXISTS (
                SELECT FROM pg_type AS y
                WHERE (y.oid = p.prorettype OR y.oid = ANY(p.proargtypes::oid[])) AND y.typname ~ foreign_types
            ) AS is_plain
        FROM (
            SELECT t.parts[1]::oid AS oid
            FROM regexp_matches(
                tree, ':(?:funcid|opfuncid|negfuncid|hashfuncid|aggfnoid|winfnoid) ([0-9]+)', 'g'
            ) AS t(parts)
            UNION
            SELECT o.oprcode::oid
            FROM regexp_matches(tree, ':(?:opno|eqop|sortop) ([0-9]+)', 'g') AS t(parts)
            INNER JOIN pg_operator AS o ON o.oid = t.parts[1]::oid
        ) AS used
        INNER JOIN pg_proc AS p ON p.oid = used.oid
        INNER JOIN pg_namespace AS n ON n.oid = p.pronamespace
        INNER JOIN pg_language AS l ON l.oid = p.prolang
    LOOP
        words := CASE
            WHEN item.nspname = 'pgmb' AND item.proname = ANY(own) THEN NULL
            WHEN item.nspname <> 'pg_catalog' THEN concat('only functions of pg_catalog and ', array_to_string(own, ', '), ' may')
            WHEN item.provolatile = 'v' THEN 'it is volatile'
            WHEN NOT item.is_plain THEN 'it looks beyond the event e and the subscription s'
            WHEN item.proname = ANY(multiplying) THEN 'its result could take any memory or time'
        END;
        IF words IS NOT NULL THEN
            RETURN concat('function ', item.proname, ' may not be called in a condition: ', words);
        END IF;
        matches_patterns := matches_patterns OR item.proname ~ patterns;
    END LOOP;
    -- A text constant with a backslash and a digit, byte by byte; or ** in the path of a jsonpath.
    IF matches_patterns AND (tree ~ ':constvalue [0-9]+ [[][^]]* 92 (4[89]|5[0-7]) ' OR condition ~ '(^|[^/])[*][*]') THEN
        RETURN 'it holds a pattern with a back-reference or **, which could take any time: write it without';
    END IF;
    RETURN NULL;
END
$function$;
