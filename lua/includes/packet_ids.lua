-- Positions, from 0, of the payload keys among KEYS that the set refers to: their packet ids are in use.
local function positions_in_use(messages_key, first_payload)
    local positions = {}
    for position, score in ipairs(redis.call('ZMSCORE', messages_key, unpack(KEYS, first_payload))) do
        if score then
            positions[#positions + 1] = position - 1
        end
    end
    return positions
end
