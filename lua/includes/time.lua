-- The server's clock decides what has expired: callers' clocks differ from each other.
local function now_ms()
    local time = redis.call('TIME')
    return time[1] * 1000 + math.floor(time[2] / 1000)
end
