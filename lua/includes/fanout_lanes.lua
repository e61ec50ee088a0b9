-- Returns the error for a call whose number of lanes is not that of the consumer; nil when it is.
local function lanes_error(options, ready)
    if #ready ~= options.lanes then
        return redis.error_reply('VERSION the consumer has another number of lanes: ' .. options.lanes)
    end
    return nil
end
