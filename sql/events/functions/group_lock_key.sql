-- Return the key of the advisory lock by which one session at a time reads a group.
CREATE FUNCTION pgmb.group_lock_key(gid varchar(48))
RETURNS bigint
LANGUAGE sql
IMMUTABLE
STRICT
PARALLEL SAFE
AS $$
    SELECT hashtextextended('pgmb.group/' || gid, 0)
$$;
