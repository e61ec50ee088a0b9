-- The instant of the first row of a range of order, on which all searches by time rest: instants rise with the
-- sequences. Nothing when there is none.
local function neighbour_ms(order_key, times_key, ...)
    local key = redis.call('ZRANGE', order_key, ...)[1]
    return key and tonumber(redis.call('ZSCORE', times_key, key) or '0')
end
