-- Epochs rise, and by the server's clock: a server that took over without the last writes must not give a fence out
-- again that another consumer has.
local function next_epoch(epoch)
    local time = redis.call('TIME')
    return math.max(tonumber(epoch or '0') + 1, time[1] * 1000000 + time[2])
end
