-- Return whether another store may own a session, or a session may be moving. Until the transaction ends, a process
-- that arms a cohort waits for it.
CREATE FUNCTION queuekeeper.sessions_move()
RETURNS boolean
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = ''
AS $$
BEGIN
    -- A process that arms a cohort waits for the holders of this lock, since they may have checked before.
    LOCK TABLE queuekeeper.online_cohorts IN ACCESS SHARE MODE;
    RETURN EXISTS (SELECT 1 AS one FROM queuekeeper.online_cohorts AS cohort WHERE cohort.state <> 'planned')
    OR EXISTS (SELECT 1 AS one FROM queuekeeper.session_owners);
END;
$$;
