-- Write the statements that give a copy of a table what LIKE does not: keys, indexes, grants, policies, comments,
-- triggers; and tell its columns. The table serves in schema place, and the copy is in schema room. All rows together
-- are what must not change while the table is copied.
-- params: oid, key, place, room
-- rows: (moment, statement): owner, column, check (words), copy (for the empty copy), leave (for the table before it
-- leaves its schema), arrive (for the copy that has taken its place), wake (for the table when it comes back)
-- index: none, the catalog's own
WITH adopted AS (
    SELECT
        relation.*,
        format('%%I.%%I', namespace.nspname, relation.relname) AS present_name,
        format('%%I.%%I', %(place)s::text, relation.relname) AS name,
        format('%%I.%%I', %(room)s::text, relation.relname) AS copy
    FROM pg_class AS relation
    INNER JOIN pg_namespace AS namespace ON relation.relnamespace = namespace.oid
    WHERE relation.oid = %(oid)s::oid
),

found (place, name, moment, words) AS (
    SELECT
        0,
        '',
        'owner',
        format('OWNER TO %%s', relowner::regrole)
    FROM adopted
    UNION ALL
    SELECT
        1,
        lpad(attribute.attnum::text, 5),
        'column',
        concat_ws(
            ' ', quote_ident(attribute.attname), format_type(attribute.atttypid, attribute.atttypmod),
            CASE WHEN attribute.attnotnull THEN 'NOT NULL' END,
            'DEFAULT ' || pg_get_expr(preset.adbin, preset.adrelid),
            'COLLATE ' || nullif(attribute.attcollation, 0)::regcollation::text,
            'IDENTITY ' || nullif(attribute.attidentity::text, '')
        )
    FROM adopted
    INNER JOIN pg_attribute AS attribute
        ON adopted.oid = attribute.attrelid AND attribute.attnum > 0 AND NOT attribute.attisdropped
    LEFT JOIN pg_attrdef AS preset ON attribute.attrelid = preset.adrelid AND attribute.attnum = preset.adnum
    UNION ALL
    SELECT
        2,
        entry.conname,
        'check',
        format('%%I %%s', entry.conname, pg_get_constraintdef(entry.oid))
    FROM adopted
    INNER JOIN pg_constraint AS entry ON adopted.oid = entry.conrelid AND entry.contype = 'c'
    UNION ALL
    -- A key of a partitioned table has to hold the column by which it is partitioned.
    SELECT
        3,
        entry.contype::text || entry.conname,
        'copy',
        format(
            'ALTER TABLE %%s ADD CONSTRAINT %%I %%s', adopted.copy, entry.conname,
            CASE
                WHEN parts.has_key THEN pg_get_constraintdef(entry.oid)
                ELSE replace(
                    pg_get_constraintdef(entry.oid), '(' || parts.names || ')',
                    format('(%%s, %%I)', parts.names, %(key)s)
                )
            END
        )
    FROM adopted
    INNER JOIN pg_constraint AS entry ON adopted.oid = entry.conrelid AND entry.contype IN ('p', 'u')
    CROSS JOIN
        LATERAL (
            SELECT
                string_agg(quote_ident(attribute.attname), ', ' ORDER BY place.at) AS names,
                bool_or(attribute.attname = %(key)s) AS has_key
            FROM unnest(entry.conkey) WITH ORDINALITY AS place (attnum, at)
            INNER JOIN pg_attribute AS attribute ON place.attnum = attribute.attnum
            WHERE attribute.attrelid = adopted.oid
        ) AS parts
    UNION ALL
    SELECT
        4,
        own.relname,
        'copy',
        replace(
            replace(
                pg_get_indexdef(entry.indexrelid),
                ' ON ONLY ' || adopted.present_name || ' USING ', ' ON ' || adopted.copy || ' USING '
            ),
            ' ON ' || adopted.present_name || ' USING ', ' ON ' || adopted.copy || ' USING '
        )
    FROM adopted
    INNER JOIN pg_index AS entry ON adopted.oid = entry.indrelid
    INNER JOIN pg_class AS own ON entry.indexrelid = own.oid
    LEFT JOIN pg_constraint AS of_it ON entry.indexrelid = of_it.conindid AND of_it.contype IN ('p', 'u', 'x')
    WHERE of_it.oid IS NULL
    UNION ALL
    SELECT
        5,
        own.relname,
        'copy',
        format(
            'COMMENT ON INDEX %%I.%%I IS %%L', %(room)s::text, own.relname,
            obj_description(entry.indexrelid, 'pg_class')
        )
    FROM adopted
    INNER JOIN pg_index AS entry ON adopted.oid = entry.indrelid
    INNER JOIN pg_class AS own ON entry.indexrelid = own.oid
    WHERE obj_description(entry.indexrelid, 'pg_class') IS NOT NULL
    UNION ALL
    SELECT
        6,
        entry.conname,
        'copy',
        format(
            'COMMENT ON CONSTRAINT %%I ON %%s IS %%L', entry.conname, adopted.copy,
            obj_description(entry.oid, 'pg_constraint')
        )
    FROM adopted
    INNER JOIN pg_constraint AS entry ON adopted.oid = entry.conrelid AND entry.contype IN ('p', 'u')
    WHERE obj_description(entry.oid, 'pg_constraint') IS NOT NULL
    UNION ALL
    SELECT
        7,
        '',
        'copy',
        format('COMMENT ON TABLE %%s IS %%L', copy, obj_description(oid, 'pg_class'))
    FROM adopted
    WHERE obj_description(oid, 'pg_class') IS NOT NULL
    UNION ALL
    -- Default privileges may have granted more on the copy than the table has.
    SELECT
        8,
        '',
        'copy',
        format(
            'REVOKE ALL ON TABLE %%s FROM %%s', adopted.copy,
            string_agg(DISTINCT CASE given.grantee WHEN 0 THEN 'PUBLIC' ELSE given.grantee::regrole::text END, ', ')
        )
    FROM adopted
    INNER JOIN pg_default_acl AS preset ON preset.defaclobjtype = 'r' AND preset.defaclnamespace = 0
    CROSS JOIN aclexplode(preset.defaclacl) AS given
    WHERE given.grantee != adopted.relowner
    GROUP BY adopted.copy
    UNION ALL
    SELECT
        9,
        given.grantee::text || coalesce(attribute.attname, ''),
        'copy',
        format(
            'GRANT %%s ON TABLE %%s TO %%s%%s',
            string_agg(
                given.privilege_type || coalesce(' (' || quote_ident(attribute.attname) || ')', ''), ', '
                ORDER BY given.privilege_type
            ),
            adopted.copy, CASE given.grantee WHEN 0 THEN 'PUBLIC' ELSE given.grantee::regrole::text END,
            CASE WHEN given.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END
        )
    FROM adopted
    CROSS JOIN
        LATERAL (
            SELECT
                NULL::name AS attname,
                adopted.relacl AS acl
            UNION ALL
            SELECT
                attname,
                attacl
            FROM pg_attribute
            WHERE attrelid = adopted.oid AND attacl IS NOT NULL AND NOT attisdropped
        ) AS attribute
    CROSS JOIN aclexplode(attribute.acl) AS given
    WHERE given.grantee != adopted.relowner
    GROUP BY adopted.copy, given.grantee, attribute.attname, given.is_grantable
    UNION ALL
    SELECT
        10,
        said.words,
        'copy',
        format('ALTER TABLE %%s %%s ROW LEVEL SECURITY', adopted.copy, said.words)
    FROM adopted
    CROSS JOIN
        LATERAL (
            VALUES
            (adopted.relrowsecurity, 'ENABLE'),
            (adopted.relforcerowsecurity, 'FORCE')
        ) AS said (is_so, words)
    WHERE said.is_so
    UNION ALL
    SELECT
        11,
        policy.polname,
        'copy',
        format(
            'CREATE POLICY %%I ON %%s AS %%s FOR %%s TO %%s%%s%%s', policy.polname, adopted.copy,
            CASE WHEN policy.polpermissive THEN 'PERMISSIVE' ELSE 'RESTRICTIVE' END,
            CASE policy.polcmd
                WHEN 'r' THEN 'SELECT' WHEN 'a' THEN 'INSERT' WHEN 'w' THEN 'UPDATE' WHEN 'd' THEN 'DELETE' ELSE 'ALL'
            END,
            (
                SELECT string_agg(CASE one WHEN 0 THEN 'PUBLIC' ELSE one::regrole::text END, ', ')
                FROM unnest(policy.polroles) AS one
            ),
            ' USING (' || pg_get_expr(policy.polqual, policy.polrelid) || ')',
            ' WITH CHECK (' || pg_get_expr(policy.polwithcheck, policy.polrelid) || ')'
        )
    FROM adopted
    INNER JOIN pg_policy AS policy ON adopted.oid = policy.polrelid
    UNION ALL
    SELECT
        CASE WHEN said.words LIKE 'CREATE %%' THEN 12 ELSE 13 END,
        trigger.tgname,
        said.moment,
        said.words
    FROM adopted
    INNER JOIN pg_trigger AS trigger ON adopted.oid = trigger.tgrelid
    CROSS JOIN
        LATERAL (
            VALUES
            -- While the table stands aside, what is repeated on it fires nothing.
            ('leave', format('ALTER TABLE %%s DISABLE TRIGGER %%I', adopted.name, trigger.tgname)),
            (
                'arrive',
                replace(
                    pg_get_triggerdef(trigger.oid),
                    ' ON ' || adopted.present_name || ' ', ' ON ' || adopted.name || ' '
                )
            ),
            (
                'arrive',
                format(
                    'COMMENT ON TRIGGER %%I ON %%s IS %%L', trigger.tgname, adopted.name, obj_description(trigger.oid)
                )
            ),
            (
                CASE trigger.tgenabled WHEN 'O' THEN 'wake' ELSE 'arrive' END,
                format(
                    'ALTER TABLE %%s %%s TRIGGER %%I', adopted.name,
                    CASE trigger.tgenabled
                        WHEN 'D' THEN 'DISABLE' WHEN 'A' THEN 'ENABLE ALWAYS' WHEN 'R' THEN 'ENABLE REPLICA' ELSE
                            'ENABLE'
                    END, trigger.tgname
                )
            ),
            (
                CASE WHEN trigger.tgenabled IN ('A', 'R') THEN 'wake' END,
                format(
                    'ALTER TABLE %%s ENABLE %%s TRIGGER %%I', adopted.name,
                    CASE trigger.tgenabled WHEN 'A' THEN 'ALWAYS' ELSE 'REPLICA' END, trigger.tgname
                )
            )
        ) AS said (moment, words)
    WHERE
        NOT trigger.tgisinternal
        AND trigger.tgname NOT IN ('queuekeeper_adoption', 'queuekeeper_adoption_truncate')
        AND said.moment IS NOT NULL
        AND (said.words NOT LIKE 'COMMENT %%' OR obj_description(trigger.oid) IS NOT NULL)
)

SELECT
    moment,
    words AS statement
FROM found
ORDER BY place, name, moment, words
