-- Returns the instant of the first row of a range of order, or nothing without a row. All searches by time rely on it:
-- instants rise with sequences.
local function neighbour_ms(order_key, times_key, ...)
    local key = redis.call('ZRANGE', order_key, ...)[1]
    return key and tonumber(redis.call('ZSCORE', times_key, key) or '0')
end
