-- su, 13 hexadecimal digits of microseconds since 1970, 9 digits of a number; or a name that its maker chose.
CREATE DOMAIN pgmb.subscription_id AS varchar(24) COLLATE "C";
