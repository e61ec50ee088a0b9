-- Tell whether any session may be another store's, or on its way there; until the transaction ends nobody who arms a
-- cohort goes on without it.
CREATE FUNCTION queuekeeper.sessions_move()
RETURNS boolean
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = ''
AS $$
BEGIN
    -- Whoever arms a cohort waits for the holders of this lock, since they may have looked before.
    LOCK TABLE queuekeeper.online_cohorts IN ACCESS SHARE MODE;
    RETURN EXISTS (SELECT 1 AS one FROM queuekeeper.online_cohorts AS cohort WHERE cohort.state <> 'planned')
    OR EXISTS (SELECT 1 AS one FROM queuekeeper.session_owners);
END;
$$;
