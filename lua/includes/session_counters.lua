-- Counts only where a session hash is: a session that another program wrote gets no hash that would outlive it.
local function count_in_session(session_key, field, number)
    if number > 0 and redis.call('EXISTS', session_key) == 1 then
        redis.call('HINCRBY', session_key, field, string.format('%d', number))
    end
end
