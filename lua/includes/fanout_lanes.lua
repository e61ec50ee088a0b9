-- The error to answer when the caller names the lists of other lanes than the consumer has; nil when it does not.
local function lanes_error(options, ready)
    if #ready ~= options.lanes then
        return redis.error_reply('VERSION the consumer has another number of lanes: ' .. options.lanes)
    end
    return nil
end
