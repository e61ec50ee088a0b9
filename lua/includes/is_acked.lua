-- A message that was sent is acknowledged unless it is in flight.
local function is_acked(in_flight_key, number, acked, sent)
    if number <= acked or number > sent then
        return number <= acked
    end
    return not redis.call('ZSCORE', in_flight_key, string.format('%.0f', number))
end
