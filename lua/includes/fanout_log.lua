-- The log has the ids of the messages for all members, in order, an entry per publish. An entry's number is how many
-- ids the log has had up to its end, and its field the ids, each with a colon and its order hash unless that is 0. A
-- member's cursor is the number up to which the ids are in its own lists. A member without a cursor does not read the
-- log: publishers put ids into its lists.

-- Returns the number that the log has reached, and a member's cursor, nil without one. A consumer that leaves gets
-- nothing that was published since.
local function cursor_of(keys, consumer)
    local cursor = tonumber(redis.call('ZSCORE', keys.cursors, consumer) or nil)
    local reached = tonumber(redis.call('HGET', keys.details, 'left_at') or redis.call('HGET', keys.state, 'logged'))
    return reached or 0, cursor
end
