--- @include "includes/integers"
local function is_packet_id(text)
    local number = integer(text)
    return number ~= nil and number >= 1 and number <= 65535
end
