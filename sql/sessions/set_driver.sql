-- Say which driver writes in this transaction, and how long it waits for a writer's lock.
-- params: driver, patience_ms; patience_ms: 0 for as long as it takes
-- rows: one, of no interest
-- index: none
SELECT
    set_config('queuekeeper.driver', (%(driver)s::bigint)::text, TRUE) AS driver,
    set_config('lock_timeout', (%(patience_ms)s::int)::text, TRUE) AS patience_ms
