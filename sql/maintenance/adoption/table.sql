-- Describe a table that is to be adopted, or is being adopted.
-- params: table, key
-- rows: at most one: (oid, name, schema_name, relation_name, owner, role, may_alter, keys, key_types, key_type,
-- columns, storage, bytes, rows, room, is_noting)
-- index: none, the catalog's own
SELECT
    -- include: relation_columns
    current_user::text AS role,
    pg_has_role(relation.relowner, 'USAGE') AS may_alter,
    coalesce(identity.names, '{}') AS keys,
    coalesce(identity.types, '{}') AS key_types,
    -- include: key_type
    (
        SELECT array_agg(each.attname::text ORDER BY each.attnum)
        FROM pg_attribute AS each
        WHERE each.attrelid = relation.oid AND each.attnum > 0 AND NOT each.attisdropped
    ) AS columns,
    coalesce(relation.reloptions, '{}') || array(
        SELECT 'toast.' || each.option
        FROM pg_class AS toast
        CROSS JOIN unnest(toast.reloptions) AS each (option)
        WHERE toast.oid = relation.reltoastrelid
    ) AS storage,
    (
        SELECT coalesce(sum(pg_total_relation_size(each.relid)), 0)::bigint
        FROM pg_partition_tree(relation.oid) AS each
    ) + CASE relation.relkind WHEN 'r' THEN pg_total_relation_size(relation.oid) ELSE 0 END AS bytes,
    greatest(relation.reltuples, 0)::bigint AS rows,
    -- The schema of an adoption under way has the OID of the plain table in its name.
    coalesce(noting.room, (
        SELECT room.nspname::text FROM pg_namespace AS room
        WHERE room.nspname = 'queuekeeper_adopt_' || relation.oid
    )) AS room,
    noting.room IS NOT NULL AS is_noting
FROM pg_class AS relation
INNER JOIN pg_namespace AS namespace ON relation.relnamespace = namespace.oid
LEFT JOIN pg_attribute AS attribute
    ON relation.oid = attribute.attrelid AND attribute.attname = %(key)s AND attribute.attnum > 0
LEFT JOIN pg_type AS key_type ON attribute.atttypid = key_type.oid
LEFT JOIN LATERAL (
    SELECT
        array_agg(part.attname::text ORDER BY place.at) AS names,
        array_agg(format_type(part.atttypid, part.atttypmod) ORDER BY place.at) AS types
    FROM pg_index AS entry
    CROSS JOIN unnest((entry.indkey::int2[])[0:entry.indnkeyatts - 1]) WITH ORDINALITY AS place (attnum, at)
    INNER JOIN pg_attribute AS part ON entry.indrelid = part.attrelid AND place.attnum = part.attnum
    WHERE entry.indrelid = relation.oid AND entry.indisprimary
) AS identity ON TRUE
LEFT JOIN LATERAL (
    SELECT room.nspname::text AS room
    FROM pg_trigger AS trigger
    INNER JOIN pg_proc AS note ON trigger.tgfoid = note.oid
    INNER JOIN pg_namespace AS room ON note.pronamespace = room.oid
    WHERE trigger.tgrelid = relation.oid AND trigger.tgname = 'queuekeeper_adoption'
) AS noting ON TRUE
WHERE relation.oid = to_regclass(%(table)s)
