-- Change a setting.
-- params: key, value
-- rows: none
-- index: config_pkey
UPDATE pgmb.config SET value = %(value)s
WHERE id = %(key)s::pgmb.config_type
