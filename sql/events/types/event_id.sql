-- pm, 13 hexadecimal digits of microseconds since 1970, 9 digits of a number: sorts by time as text.
CREATE DOMAIN pgmb.event_id AS varchar(24) COLLATE "C";
