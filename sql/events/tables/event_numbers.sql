-- Last digits of ids, so that two ids of one microsecond differ: 36 bits, which then start again at a later time.
CREATE SEQUENCE pgmb.event_numbers AS bigint MINVALUE 0 MAXVALUE 68719476735 START 0 CACHE 100 CYCLE;
