-- Tell whether any migration was ever applied.
-- params: none
-- rows: one: (boolean)
-- index: none
SELECT to_regclass('queuekeeper.schema_migrations') IS NOT NULL AS present
