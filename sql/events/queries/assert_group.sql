-- Make sure that a group exists. A new one reads what is dispatched from now on.
-- params: group_id
-- rows: none
-- index: primary key of pgmb.subscription_groups
INSERT INTO pgmb.subscription_groups (id)
VALUES (%(group_id)s)
ON CONFLICT DO NOTHING
