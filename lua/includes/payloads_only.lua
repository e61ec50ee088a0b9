-- Refuse arguments, and no or too many payload keys.
local PAYLOAD_KEYS_PER_CALL = 1000

local count = #KEYS - FIRST_PAYLOAD + 1
if count < 1 or count > PAYLOAD_KEYS_PER_CALL or #ARGV ~= 0 then
    return redis.error_reply('INVALID 1 to ' .. PAYLOAD_KEYS_PER_CALL .. ' payload keys and no argument are expected')
end
