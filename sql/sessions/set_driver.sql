-- Say which driver writes in this transaction.
-- params: driver
-- rows: one: (the driver)
-- index: none
SELECT set_config('queuekeeper.driver', (%(driver)s::bigint)::text, TRUE) AS driver
