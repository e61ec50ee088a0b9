-- Name of the subscriptions that are read together, by one reader at a time.
CREATE DOMAIN pgmb.group_id AS varchar(48) COLLATE "C";
