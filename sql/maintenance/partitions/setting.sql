-- Read a setting of this session.
-- params: name
-- rows: one: (value)
-- index: none
SELECT current_setting(%(name)s) AS setting_value
