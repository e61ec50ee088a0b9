-- Return whether the condition of a key fails on the latest events; NULL when no subscription has it.
-- A condition that takes too long is an error, as in check_condition.
-- It runs as the owner and returns only this, only for stored conditions: the caller needs no right to read events, and
-- learns nothing of them.
CREATE FUNCTION pgmb.condition_fails(key uuid)
RETURNS boolean
LANGUAGE sql
SECURITY DEFINER
SET search_path TO pgmb, pg_temp
AS $$
    SELECT trial.failure IS NOT NULL
    FROM (SELECT s.conditions_sql FROM subscriptions AS s WHERE s.condition_key = key LIMIT 1) AS stored
    CROSS JOIN LATERAL check_condition(stored.conditions_sql) AS trial
$$;
