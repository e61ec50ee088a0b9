-- Wakes the consumer of a queue. A wake-up that is not taken expires: no lease lasts longer, and every heartbeat checks
-- for messages anyway.
local WAKE_LIFE_S = 86400
local function wake(wake_key, score)
    if redis.call('ZADD', wake_key, score, 'wake') == 1 then
        redis.call('EXPIRE', wake_key, WAKE_LIFE_S)
    end
end
