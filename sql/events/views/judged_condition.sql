-- Where condition_refusal has PostgreSQL parse a condition: as a rule of this view, which is taken back at once.
-- It belongs to role pgmb_reader, as a rule can be made by the owner of its view alone, and shows nothing.
-- owner: pgmb_reader
CREATE VIEW pgmb.judged_condition AS SELECT FALSE AS holds;
