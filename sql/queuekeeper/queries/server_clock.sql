-- Tell the time.
-- params: none
-- rows: one: (milliseconds since 1970)
-- index: none
SELECT floor(extract(EPOCH FROM clock_timestamp()) * 1000)::bigint AS now_ms
