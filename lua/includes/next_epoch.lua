-- Epochs rise with the server's clock, so that a server that took over without the last writes never issues the fence
-- of another consumer again.
local function next_epoch(epoch)
    local time = redis.call('TIME')
    return math.max(tonumber(epoch or '0') + 1, time[1] * 1000000 + time[2])
end
