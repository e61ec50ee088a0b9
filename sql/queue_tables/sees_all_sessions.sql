-- Return whether this role is told what sessions of other roles do.
-- params: none
-- rows: one: (sees_all, role); role as SQL writes its name
-- index: none
SELECT
    pg_has_role(current_user, 'pg_read_all_stats', 'USAGE') AS sees_all,
    quote_ident(current_user) AS role
