-- Counts only where a session hash is: a session that another program wrote gets no hash that would outlive it.
local function count_in_session(key, field, number)
    if number > 0 and redis.call('EXISTS', key) == 1 then
        redis.call('HINCRBY', key, field, string.format('%d', number))
    end
end
