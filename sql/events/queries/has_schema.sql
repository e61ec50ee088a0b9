-- Tell whether schema pgmb is there, and whether it has the ledger of this event broker.
-- params: none
-- rows: one: (has schema, has ledger)
-- index: none
SELECT
    to_regnamespace('pgmb') IS NOT NULL AS has_schema,
    to_regclass('pgmb.migrations') IS NOT NULL AS has_ledger
