--- @include "includes/import_state"
-- A broker that acknowledges or adds changes the count of references or the last packet id. Once a repeated import has
-- noted a use, the session stays used, whatever its count is later.
local function touched(state, messages_key, last_packet_id_key)
    return state.used ~= ''
        or redis.call('ZCARD', messages_key) ~= state.references
        or (redis.call('GET', last_packet_id_key) or '') ~= state.last_packet_id
end
