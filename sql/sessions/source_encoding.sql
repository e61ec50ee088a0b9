-- Tell how the database encodes text.
-- params: none
-- rows: one: (encoding)
-- index: none
SELECT current_setting('server_encoding') AS encoding
