-- Return whether the event broker is installed in this database.
-- params: none
-- rows: one: (whether it is)
-- index: none, the catalog's own
SELECT to_regprocedure('pgmb.extend_partitions(regclass,timestamptz)') IS NOT NULL AS has_broker
