--- @include "includes/integers"
-- A last packet id is empty if there is none, 0 in a session that has never used one, else an MQTT packet id.
local function is_last_packet_id(text)
    if text == '' then
        return true
    end
    local number = integer(text)
    return number ~= nil and number >= 0 and number <= 65535
end
