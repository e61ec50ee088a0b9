-- Return whether this session holds the lock by which a group is read.
CREATE FUNCTION pgmb.holds_group_lock(gid varchar(48))
RETURNS boolean
LANGUAGE plpgsql
SET search_path TO pgmb, pg_temp
AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM pg_locks AS l
        WHERE
            l.locktype = 'advisory'
            AND l.pid = pg_backend_pid()
            AND l.granted
            AND l.objsubid = 1
            AND (l.classid::bigint << 32) | l.objid::bigint = group_lock_key(gid)
            AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
    );
END
$$;
