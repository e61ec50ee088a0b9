-- Everything the event broker keeps; the name is the one that clients written for PGMB know.
CREATE SCHEMA pgmb;
