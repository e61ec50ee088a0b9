-- Counts only if a session hash exists: a session of another program must not get a hash that would outlive it.
local function count_in_session(key, field, number)
    if number > 0 and redis.call('EXISTS', key) == 1 then
        redis.call('HINCRBY', key, field, string.format('%d', number))
    end
end
