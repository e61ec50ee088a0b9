-- Count the blocks of a table.
-- params: oid
-- rows: one: (blocks)
-- index: none
SELECT (pg_relation_size(%(oid)s::oid::regclass) / current_setting('block_size')::bigint) AS blocks
