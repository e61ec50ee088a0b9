-- Say in words why a table cannot be adopted; no rows when it can. What refers to a table would be lost as well when an
-- adopted one makes way for the old one.
-- params: oid, key, widen
-- rows: (words, whether that refers to the table)
-- index: none, the catalog's own
WITH adopted AS (
    SELECT
        relation.*,
        namespace.nspname,
        attribute.attnum AS key_number,
        attribute.attnotnull AS key_is_filled,
        identity.indexrelid IS NOT NULL AS has_identity,
        method.oid AS heap,
        (
            SELECT count(*) > 0
            FROM pg_inherits AS kin
            WHERE relation.oid IN (kin.inhrelid, kin.inhparent)
        ) AS has_kin
    FROM pg_class AS relation
    INNER JOIN pg_namespace AS namespace ON relation.relnamespace = namespace.oid
    INNER JOIN pg_am AS method ON method.amname = 'heap'
    LEFT JOIN pg_index AS identity ON relation.oid = identity.indrelid AND identity.indisprimary
    LEFT JOIN pg_attribute AS attribute
        ON
            relation.oid = attribute.attrelid
            AND attribute.attname = %(key)s
            AND attribute.attnum > 0
            AND NOT attribute.attisdropped
    WHERE relation.oid = %(oid)s::oid
),

of_table (place, words) AS (
    SELECT
        said.place,
        said.words
    FROM adopted
    CROSS JOIN
        LATERAL (
            VALUES
            (1, pg_is_in_recovery(), 'the server is a replica: name the primary server'),
            (2, adopted.relkind = 'p', 'it is partitioned already: give it a policy by `queuekeeper partitions set`'),
            (2, adopted.relkind NOT IN ('r', 'p'), 'it is no table'),
            (
                3, adopted.nspname IN ('queuekeeper', 'pgmb', 'information_schema') OR adopted.nspname LIKE 'pg\_%%',
                'its schema ' || adopted.nspname || ' belongs to a program: only tables of your own are adopted'
            ),
            (
                4, NOT pg_has_role(adopted.relowner, 'USAGE'),
                format(
                    'it belongs to %%1$I: connect as that role, or grant it: GRANT %%1$I TO %%2$I',
                    pg_get_userbyid(adopted.relowner), current_user
                )
            ),
            (
                5, NOT has_database_privilege(current_database(), 'CREATE'),
                format('%%I may create no schema: GRANT CREATE ON DATABASE %%I TO it', current_user, current_database())
            ),
            (
                6, NOT has_schema_privilege(current_user, adopted.nspname, 'CREATE'),
                format(
                    '%%I may create no table in its schema: GRANT CREATE ON SCHEMA %%I TO it',
                    current_user,
                    adopted.nspname
                )
            ),
            (
                6, NOT has_schema_privilege(adopted.relowner, adopted.nspname, 'CREATE'),
                format(
                    'its owner %%1$I may create no table in its schema: GRANT CREATE ON SCHEMA %%2$I TO %%1$I',
                    pg_get_userbyid(adopted.relowner), adopted.nspname
                )
            ),
            (
                7, octet_length(adopted.relname) > 40,
                'its name has ' || octet_length(adopted.relname) || ' bytes: partitions add a date to the name and '
                || 'PostgreSQL allows 63 bytes, so rename the table to at most 40 bytes'
            ),
            (8, adopted.relpersistence = 't', 'it is a temporary table'),
            (
                8,
                adopted.relpersistence = 'u',
                'it is unlogged, and a crash would empty it: ALTER TABLE ... SET LOGGED first'
            ),
            (8, adopted.reloftype != 0, 'it is a table of a type: ALTER TABLE ... NOT OF first'),
            (8, adopted.relam != adopted.heap, 'its access method is not heap'),
            (
                8,
                adopted.reltablespace != 0,
                'it is in a tablespace of its own: ALTER TABLE ... SET TABLESPACE pg_default first'
            ),
            (
                8, adopted.relreplident != 'd',
                'its REPLICA IDENTITY is not the default, and partitions would not have it: '
                || 'ALTER TABLE ... REPLICA IDENTITY DEFAULT first'
            ),
            (
                8, adopted.relforcerowsecurity AND row_security_active(adopted.oid),
                'row security binds this role: connect as a role with BYPASSRLS'
            ),
            (
                9, adopted.has_kin,
                'it inherits, or others inherit from it: ALTER TABLE ... NO INHERIT first'
            ),
            (
                10, NOT adopted.has_identity,
                'it has no primary key, so rows cannot be compared: add one first'
            ),
            (11, adopted.key_number IS NULL, 'it has no column ' || quote_ident(%(key)s)),
            (
                12, adopted.key_is_filled IS FALSE,
                format(
                    'column %%1$I may be null, and no partition takes a null: ALTER COLUMN %%1$I SET NOT NULL first',
                    %(key)s
                )
            )
        ) AS said (place, is_so, words)
    WHERE said.is_so
),

of_columns AS (
    SELECT
        13 AS place,
        format('column %%I is generated: drop it, and add it again afterwards', attname)
            AS words
    FROM pg_attribute
    WHERE attrelid = %(oid)s::oid AND attgenerated != '' AND NOT attisdropped
),

of_constraints AS (
    SELECT
        14 AS place,
        entry.contype = 'f' AS is_foreign_key,
        format('constraint %%I %%s', entry.conname, said.words) AS words
    FROM pg_constraint AS entry
    CROSS JOIN adopted
    CROSS JOIN
        LATERAL (
            VALUES
            (
                entry.contype = 'f' AND entry.conrelid = adopted.oid,
                'refers to '
                || entry.confrelid::regclass::text
                || ', and would stop deletes there while the copy lags: drop it, '
                || 'and add it again after the commit'
            ),
            (
                entry.contype = 'f' AND entry.conrelid != adopted.oid,
                'of '
                || entry.conrelid::regclass::text
                || ' refers to the table, and would go on referring to the one that is set '
                || 'aside: drop it, and add it again after the commit'
            ),
            (entry.contype = 'x', 'is an exclusion: drop it'),
            (
                entry.contype IN ('p', 'u') AND entry.condeferrable,
                'is deferrable: make it NOT DEFERRABLE'
            ),
            (
                entry.contype IN ('c', 'n') AND NOT entry.convalidated,
                'is not validated: ALTER TABLE ... VALIDATE CONSTRAINT first'
            ),
            (entry.contype IN ('c', 'n') AND entry.connoinherit, 'is NO INHERIT, which partitions cannot have'),
            (
                entry.contype IN ('p', 'u') AND NOT %(widen)s AND NOT entry.conkey @> ARRAY[adopted.key_number],
                format(
                    'does not hold column %%1$I, and PostgreSQL keeps a key of a partitioned table unique only with '
                    || 'it: allow a key that is unique together with %%1$I by --widen-keys, or partition by a column '
                    || 'of the key',
                    %(key)s
                )
            )
        ) AS said (is_so, words)
    WHERE adopted.oid IN (entry.conrelid, entry.confrelid) AND said.is_so
),

of_indexes AS (
    SELECT
        15 AS place,
        format('index %%s %%s', entry.indexrelid::regclass, said.words) AS words
    FROM pg_index AS entry
    LEFT JOIN pg_constraint AS of_it ON entry.indexrelid = of_it.conindid AND of_it.contype IN ('p', 'u')
    CROSS JOIN adopted
    CROSS JOIN
        LATERAL (
            VALUES
            (NOT entry.indisvalid, 'is not valid: REINDEX or drop it'),
            (
                entry.indisunique AND NOT ((entry.indkey::int2[])[0:entry.indnkeyatts - 1] @> ARRAY[adopted.key_number])
                AND of_it.oid IS NULL,
                format(
                    'is unique without column %%I, which a partitioned table cannot keep: drop it or add the column',
                    %(key)s
                )
            )
        ) AS said (is_so, words)
    WHERE entry.indrelid = adopted.oid AND said.is_so
),

of_triggers AS (
    SELECT
        16 AS place,
        format(
            'trigger %%I is a constraint trigger or reads transition tables, which a partitioned table cannot have: '
            || 'drop it', tgname
        ) AS words
    FROM pg_trigger
    WHERE
        tgrelid = %(oid)s::oid
        AND NOT tgisinternal
        AND (tgconstraint != 0 OR (tgtype & 1 = 1 AND (tgoldtable IS NOT NULL OR tgnewtable IS NOT NULL)))
),

of_publications AS (
    SELECT
        17 AS place,
        said.names_it,
        format('publication %%I %%s', of_it.pubname, said.words) AS words
    FROM adopted
    CROSS JOIN pg_publication AS of_it
    CROSS JOIN
        LATERAL (
            SELECT
                TRUE AS names_it,
                'names it, and would go on publishing the table that is set aside: take it out first' AS words
            FROM pg_publication_rel AS entry
            WHERE entry.prpubid = of_it.oid AND entry.prrelid = adopted.oid
            UNION ALL
            SELECT
                FALSE AS names_it,
                format(
                    'publishes all tables of schema %%I, also the partitions, which subscribers do not have: let it '
                    || 'name the tables without this one first', adopted.nspname
                ) AS words
            FROM pg_publication_namespace AS entry
            WHERE entry.pnpubid = of_it.oid AND entry.pnnspid = adopted.relnamespace
            UNION ALL
            SELECT
                FALSE AS names_it,
                'publishes all tables, also the copy and its partitions, which subscribers do not have: let it name '
                || 'the tables without this one first' AS words
            WHERE of_it.puballtables
        ) AS said
),

of_subscriptions AS (
    SELECT
        17 AS place,
        format(
            'subscription %%I writes into it, and would leave out all rows of the new table without an error: take it '
            || 'out of what is published, and refresh the subscription first', of_it.subname
        ) AS words
    FROM pg_subscription_rel AS entry
    INNER JOIN pg_subscription AS of_it ON entry.srsubid = of_it.oid
    WHERE entry.srrelid = %(oid)s::oid
),

of_extensions AS (
    SELECT
        17 AS place,
        format(
            'it belongs to extension %%1$I, which would not let the old table be dropped: '
            || 'ALTER EXTENSION %%1$I DROP TABLE %%2$s first, '
            || 'and ALTER EXTENSION %%1$I ADD TABLE %%2$s after the commit',
            extension.extname, adopted.oid::regclass
        ) AS words
    FROM adopted
    INNER JOIN pg_depend AS entry
        ON
            adopted.oid = entry.objid
            AND entry.classid = 'pg_class'::regclass
            AND entry.refclassid = 'pg_extension'::regclass
            AND entry.deptype = 'e'
    INNER JOIN pg_extension AS extension ON entry.refobjid = extension.oid
),

own_parts (class_id, object_id) AS (
    SELECT
        'pg_class'::regclass::oid,
        entry.indexrelid
    FROM pg_index AS entry
    WHERE entry.indrelid = %(oid)s::oid
    UNION ALL
    SELECT
        'pg_constraint'::regclass::oid,
        entry.oid
    FROM pg_constraint AS entry
    WHERE %(oid)s::oid IN (entry.conrelid, entry.confrelid)
    UNION ALL
    SELECT
        'pg_attrdef'::regclass::oid,
        entry.oid
    FROM pg_attrdef AS entry
    WHERE entry.adrelid = %(oid)s::oid
    UNION ALL
    SELECT
        'pg_trigger'::regclass::oid,
        entry.oid
    FROM pg_trigger AS entry
    WHERE entry.tgrelid = %(oid)s::oid
    UNION ALL
    SELECT
        'pg_policy'::regclass::oid,
        entry.oid
    FROM pg_policy AS entry
    WHERE entry.polrelid = %(oid)s::oid
    UNION ALL
    SELECT
        'pg_statistic_ext'::regclass::oid,
        entry.oid
    FROM pg_statistic_ext AS entry
    WHERE entry.stxrelid = %(oid)s::oid
    UNION ALL
    SELECT
        'pg_publication_rel'::regclass::oid,
        entry.oid
    FROM pg_publication_rel AS entry
    WHERE entry.prrelid = %(oid)s::oid
    UNION ALL
    SELECT
        'pg_type'::regclass::oid,
        entry.oid
    FROM pg_type AS entry
    INNER JOIN adopted ON entry.oid = adopted.reltype OR entry.typelem = adopted.reltype
),

of_dependents AS (
    SELECT DISTINCT
        18 AS place,
        CASE
            WHEN rule.ev_class = adopted.oid
                THEN
                    format(
                        'rule %%I would stay with the table that is set aside: let a trigger do its work', rule.rulename
                    )
            ELSE
                pg_describe_object(
                    CASE WHEN rule.oid IS NULL THEN entry.classid ELSE 'pg_class'::regclass END,
                    coalesce(rule.ev_class, entry.objid), 0
                ) || ' refers to it, and would go on reading the table that is set aside: drop it, and create it again '
                || 'afterwards'
        END AS words
    FROM adopted
    INNER JOIN pg_type AS own_type ON adopted.reltype = own_type.oid
    INNER JOIN pg_depend AS entry
        ON
            (entry.refclassid = 'pg_class'::regclass AND adopted.oid = entry.refobjid)
            OR (entry.refclassid = 'pg_type'::regclass AND entry.refobjid IN (own_type.oid, own_type.typarray))
    LEFT JOIN pg_rewrite AS rule ON entry.classid = 'pg_rewrite'::regclass AND entry.objid = rule.oid
    LEFT JOIN own_parts ON entry.classid = own_parts.class_id AND entry.objid = own_parts.object_id
    WHERE
        own_parts.object_id IS NULL
        -- Its TOAST table and its sequences.
        AND NOT (entry.classid = 'pg_class'::regclass AND entry.deptype IN ('a', 'i'))
)

SELECT
    words,
    FALSE AS refers
FROM of_table
UNION ALL
SELECT
    words,
    FALSE AS refers
FROM of_columns
UNION ALL
SELECT
    words,
    is_foreign_key
FROM of_constraints
UNION ALL
SELECT
    words,
    FALSE AS refers
FROM of_indexes
UNION ALL
SELECT
    words,
    FALSE AS refers
FROM of_triggers
UNION ALL
SELECT
    words,
    names_it
FROM of_publications
UNION ALL
SELECT
    words,
    TRUE AS refers
FROM of_subscriptions
UNION ALL
SELECT
    words,
    TRUE AS refers
FROM of_extensions
UNION ALL
SELECT
    words,
    TRUE AS refers
FROM of_dependents
