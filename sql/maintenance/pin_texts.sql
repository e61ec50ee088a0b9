-- Fix the text format of values until the end of the transaction, and fail if row security hides rows.
-- params: none
-- rows: one, without meaning
-- index: none
SELECT
    set_config('TimeZone', 'UTC', TRUE) AS time_zone,
    set_config('DateStyle', 'ISO', TRUE) AS date_style,
    set_config('IntervalStyle', 'postgres', TRUE) AS interval_style,
    set_config('extra_float_digits', '1', TRUE) AS extra_float_digits,
    set_config('bytea_output', 'hex', TRUE) AS bytea_output,
    set_config('client_encoding', 'UTF8', TRUE) AS client_encoding,
    set_config('row_security', 'off', TRUE) AS row_security
