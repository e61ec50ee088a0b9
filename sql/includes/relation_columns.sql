-- Which relation it is, of pg_class AS relation and pg_namespace AS namespace.
relation.oid::bigint AS oid,
format('%%I.%%I', namespace.nspname, relation.relname) AS name,
namespace.nspname::text AS schema_name,
relation.relname::text AS relation_name,
relation.relowner::regrole::text AS owner,
