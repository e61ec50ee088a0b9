-- Remove the event broker with all that it keeps.
-- params: none
-- rows: none
-- index: none
DROP SCHEMA pgmb CASCADE
