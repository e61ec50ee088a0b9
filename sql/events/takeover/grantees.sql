-- Read the roles that may use PGMB's tables and lose that with the move, except owner and the role of conditions.
-- params: none
-- rows: one per role: (role, what it may), sorted
-- index: none
SELECT
    a.grantee::regrole::text COLLATE "C" AS role,
    string_agg(DISTINCT c.relname || ': ' || lower(a.privilege_type), ', ') AS rights
FROM pg_class AS c
CROSS JOIN LATERAL aclexplode(c.relacl) AS a
WHERE
    c.relnamespace = to_regnamespace('pgmb_original')
    AND NOT c.relispartition
    AND a.grantee <> 0
    AND a.grantee <> c.relowner
    AND pg_get_userbyid(a.grantee) <> 'pgmb_reader'
GROUP BY a.grantee
ORDER BY role
