-- Put PGMB aside under another name, so that the way back stays open.
-- params: none
-- rows: none
-- index: none
ALTER SCHEMA pgmb RENAME TO pgmb_original
