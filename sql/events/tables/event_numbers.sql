-- Last digits of ids, so that two of one microsecond differ. 36 bits, then from the beginning: by then time has moved.
CREATE SEQUENCE pgmb.event_numbers AS bigint MINVALUE 0 MAXVALUE 68719476735 START 0 CACHE 100 CYCLE;
