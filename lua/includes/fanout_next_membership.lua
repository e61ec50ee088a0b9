-- Numbers of memberships are never used again, even if the server has lost writes: otherwise a publisher that knows an
-- earlier membership could publish to consumers that are gone. So they come from the clock, in microseconds.
local function next_membership(state_key)
    local time = redis.call('TIME')
    local before = tonumber(redis.call('HGET', state_key, 'membership')) or 0
    return math.max(before + 1, time[1] * 1000000 + time[2])
end
