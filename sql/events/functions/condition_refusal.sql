-- Return why a condition may not be stored, in words that say what to do, or NULL when it may.
-- Everything that is not listed here is refused. What is listed looks at one event and one subscription alone, writes
-- nothing, and takes time that grows at most with the square of what it is given: no sub-select, no repeat, format or
-- replace, no pattern that the data brings along, no back-reference. Operators and functions are those of pg_catalog
-- and pgmb, since a condition runs under a search_path of these two.
CREATE FUNCTION pgmb.condition_refusal(condition text)
RETURNS text
LANGUAGE plpgsql
IMMUTABLE
PARALLEL SAFE
SET search_path TO pgmb, pg_catalog, pg_temp
AS $function$
DECLARE
    longest CONSTANT int := 8000;
    event_columns CONSTANT text[] := ARRAY['id', 'topic', 'payload', 'metadata', 'subscription_id'];
    subscription_columns CONSTANT text[] := ARRAY[
        'id', 'group_id', 'conditions_sql', 'params', 'identity', 'last_active_at', 'expiry_interval', 'created_at'
    ];
    keywords CONSTANT text[] := string_to_array(
        'and or not is null true false unknown distinct from in like ilike escape between symmetric any some all array '
        'case when then else end cast as at time zone '
        'epoch year quarter month week day dow isodow hour minute second '
        'topic payload metadata params group_id conditions_sql', ' '
    );
    types CONSTANT text[] := string_to_array(
        'text varchar boolean bool int integer bigint smallint int2 int4 int8 numeric decimal real float float4 float8 '
        'double precision jsonb uuid date time timestamp timestamptz interval inet cidr event_id', ' '
    );
    functions CONSTANT text[] := string_to_array(
        'coalesce nullif greatest least '
        'lower upper length char_length octet_length left right substr split_part strpos position starts_with '
        'trim btrim ltrim rtrim reverse ascii concat concat_ws md5 string_to_array '
        'abs ceil ceiling floor round trunc sign mod div '
        'hashtext hashtextextended '
        'jsonb_typeof jsonb_array_length jsonb_build_object jsonb_build_array jsonb_extract_path '
        'jsonb_extract_path_text jsonb_strip_nulls jsonb_exists jsonb_exists_any jsonb_exists_all to_jsonb '
        'array_length array_position cardinality '
        'now date_part date_trunc extract to_timestamp extract_date_from_event_id', ' '
    );
    -- Words of the language that may stand before a bracket and are no function there.
    before_bracket CONSTANT text[] := string_to_array(
        'and or not is in like ilike escape between symmetric any some all case when then else from as', ' '
    );
    operators CONSTANT text[] := string_to_array(
        '+ - * / % = <> != < > <= >= || -> ->> #> #>> #- @> <@ ? ?| ?& @? @@ ~ ~* !~ !~* ~~ ~~* !~~ !~~* && & | # << >>',
        ' '
    );
    pattern_operators CONSTANT text[] := ARRAY['~', '~*', '!~', '!~*', '@?', '@@'];
    queries CONSTANT text[] := ARRAY['select', 'with', 'table', 'values', 'exists', 'lateral'];
    set_operations CONSTANT text[] := ARRAY['union', 'intersect', 'except'];
    commands CONSTANT text[] := string_to_array(
        'insert update delete merge truncate copy create alter drop grant revoke call do execute set reset lock into '
        'returning vacuum analyze notify listen', ' '
    );
    tokens text[];
    token text;
    word text;
    follower text;
    predecessor text;
    place int := 1;
    depth int := 0;
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
    -- The last branch takes any one character, so no text is left out.
    SELECT array_agg(found.parts[1] ORDER BY found.number)
    INTO tokens
    FROM regexp_matches(
        condition,
        $lexeme$('(?:[^']|'')*'|"(?:[^"]|"")*"|[A-Za-z_][A-Za-z0-9_]*|[0-9]+(?:[.][0-9]*)?(?:[eE][+-]?[0-9]+)?|::|[-+*/<>=~!@#%^&|`?]+|[ \t\n\r\f\v]+|.)$lexeme$,
        'g'
    ) WITH ORDINALITY AS found(parts, number)
    WHERE found.parts[1] !~ '^[ \t\n\r\f\v]+$';

    WHILE place <= cardinality(tokens) LOOP
        token := tokens[place];
        follower := tokens[place + 1];
        IF token ~ '^''.' THEN
            IF follower ~ '^''' THEN
                RETURN 'two strings stand side by side: join them with ||, or put an operator between them';
            END IF;
        ELSIF token ~ '^[A-Za-z_]' THEN
            word := lower(token COLLATE "C");
            IF word = ANY(queries) THEN
                RETURN concat(
                    'the condition holds a sub-select (', token,
                    '): it may look only at the event e and the subscription s'
                );
            ELSIF word = ANY(set_operations) THEN
                RETURN concat('the condition holds a set operation (', token, '): join two conditions with AND or OR');
            ELSIF word = ANY(commands) THEN
                RETURN concat('the condition holds the command word ', token, ': it may only read');
            ELSIF word IN ('e', 's') THEN
                IF follower IS DISTINCT FROM '.' THEN
                    RETURN concat('after ', token, ' a dot and a column must follow, such as e.topic or s.params');
                END IF;
                follower := lower(tokens[place + 2] COLLATE "C");
                IF word = 'e' AND NOT coalesce(follower = ANY(event_columns), FALSE) THEN
                    RETURN concat(
                        'e.', tokens[place + 2], ' is no column of an event: write e.',
                        array_to_string(event_columns, ', e.')
                    );
                ELSIF word = 's' AND NOT coalesce(follower = ANY(subscription_columns), FALSE) THEN
                    RETURN concat(
                        's.', tokens[place + 2], ' is no column of a subscription: write s.',
                        array_to_string(subscription_columns, ', s.')
                    );
                ELSIF tokens[place + 3] IN ('(', '.') THEN
                    RETURN concat('after ', token, '.', tokens[place + 2], ' an operator must follow');
                END IF;
                place := place + 2;
            ELSIF word = 'pgmb' AND follower = '.' THEN
                -- The function behind the dot is judged in the next round.
                place := place + 1;
                IF NOT coalesce(lower(tokens[place + 1] COLLATE "C") = ANY(functions), FALSE)
                    OR tokens[place + 2] IS DISTINCT FROM '(' THEN
                    RETURN concat(
                        'pgmb.', tokens[place + 1], ' may not be called in a condition; functions that may: ',
                        array_to_string(functions, ', ')
                    );
                END IF;
            ELSIF word = 'array' THEN
                IF follower IS DISTINCT FROM '[' THEN
                    RETURN 'after ARRAY a bracket [ must follow';
                END IF;
            ELSIF follower = '(' AND word <> 'cast' AND NOT word = ANY(before_bracket) THEN
                predecessor := lower(tokens[place - 1] COLLATE "C");
                IF NOT word = ANY(functions)
                    AND NOT (word = ANY(types) AND coalesce(predecessor IN ('::', 'as'), FALSE)) THEN
                    RETURN concat(
                        'function ', token, ' may not be called in a condition; functions that may: ',
                        array_to_string(functions, ', ')
                    );
                END IF;
            ELSIF NOT (word = ANY(keywords) OR word = ANY(types) OR (word = 'cast' AND follower = '(')) THEN
                RETURN concat(
                    'the word ', token, ' is not known in a condition: columns are written e.topic or s.params, and ',
                    'text stands between single quotes'
                );
            END IF;
        ELSIF token ~ '^[0-9]' OR token IN (',', '::') THEN
            NULL;
        ELSIF token IN ('(', '[') THEN
            depth := depth + 1;
        ELSIF token IN (')', ']') THEN
            depth := depth - 1;
            IF depth < 0 THEN
                RETURN concat('the condition closes a bracket ', token, ' that it has not opened');
            END IF;
        ELSIF token ~ '(--|/[*]|[*]/)' THEN
            RETURN 'the condition holds a comment: leave it out';
        ELSIF token ~ '^[-+*/<>=~!@#%^&|`?]' THEN
            -- PostgreSQL takes signs off the end of an operator unless it holds one of these other characters.
            IF token !~ '[~!@#%^&|`?]' AND length(token) > 1 THEN
                token := left(token, 1) || rtrim(substr(token, 2), '+-');
            END IF;
            IF NOT token = ANY(operators) THEN
                RETURN concat(
                    'operator ', token, ' may not be used in a condition; operators that may: ',
                    array_to_string(operators, ' ')
                );
            END IF;
            IF token = ANY(pattern_operators) THEN
                IF follower IS NULL OR follower !~ '^''.' THEN
                    RETURN concat(
                        'after ', token, ' a pattern between single quotes must follow: one that comes with the data ',
                        'could take any time'
                    );
                ELSIF follower ~ '\\[0-9]' OR (token IN ('@?', '@@') AND follower ~ '[*][*]') THEN
                    RETURN concat(
                        'the pattern ', follower, ' holds a back-reference or **, which could take any time: ',
                        'write it without'
                    );
                END IF;
            END IF;
        ELSIF token = ';' THEN
            RETURN 'the condition holds a semicolon: it must be one expression';
        ELSIF token = '$' THEN
            RETURN 'the condition holds a dollar sign outside a string: text stands between single quotes';
        ELSIF token = '.' THEN
            RETURN 'the condition holds a dot that follows neither e nor s: columns are written e.topic or s.params';
        ELSIF token ~ '^"' THEN
            RETURN 'the condition holds a double quote: names are written without, text stands between single quotes';
        ELSIF token = '''' THEN
            RETURN 'a string is not closed: double the single quotes inside it';
        ELSE
            RETURN concat('the condition holds the character ', token, ' outside a string: leave it out');
        END IF;
        place := place + 1;
    END LOOP;
    IF depth > 0 THEN
        RETURN 'the condition does not close all its brackets';
    END IF;
    RETURN NULL;
END
$function$;
