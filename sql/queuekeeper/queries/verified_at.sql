-- Tell when the cohorts of a plan were verified last.
-- params: plan_id
-- rows: one: (ms since 1970, or null)
-- index: ledger_pkey
SELECT max(verified_at_ms) AS verified_at_ms
FROM queuekeeper.ledger
WHERE plan_id = %(plan_id)s
