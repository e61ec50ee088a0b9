-- Wakes the consumer of a queue. A wake-up that nobody takes does not stay for ever: no lease lasts longer, and every
-- heartbeat looks all the same.
local WAKE_LIFE_S = 86400
local function wake(wake_key, score)
    if redis.call('ZADD', wake_key, score, 'wake') == 1 then
        redis.call('EXPIRE', wake_key, WAKE_LIFE_S)
    end
end
