-- Change a setting of this session.
-- params: name, value
-- rows: one, without meaning
-- index: none
SELECT set_config(%(name)s, %(value)s, FALSE) AS setting_value
