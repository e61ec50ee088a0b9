-- Tell whether there is a group.
-- params: group_id
-- rows: one
-- index: primary key of pgmb.subscription_groups
SELECT exists(
    SELECT 1
    FROM pgmb.subscription_groups AS g
    WHERE g.id = %(group_id)s
) AS has_group
