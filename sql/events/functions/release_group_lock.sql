-- Let another session read a group. Nothing happens when this one does not own it.
CREATE FUNCTION pgmb.release_group_lock(gid varchar(48))
RETURNS void
LANGUAGE plpgsql
SET search_path TO pgmb, pg_temp
AS $$
BEGIN
    IF holds_group_lock(gid) THEN
        PERFORM pg_advisory_unlock(group_lock_key(gid));
    END IF;
END
$$;
