-- Numbers of memberships never come again, even where the server has lost its last writes or all of them: a publisher
-- that knows an earlier one would publish to consumers that are no more. Hence the clock, in microseconds.
local function next_membership(state_key)
    local time = redis.call('TIME')
    local before = tonumber(redis.call('HGET', state_key, 'membership')) or 0
    return math.max(before + 1, time[1] * 1000000 + time[2])
end
