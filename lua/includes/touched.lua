--- @include "includes/import_state"
-- A broker that delivers, acknowledges or adds changes the count of references or the last packet id.
local function touched(state, messages_key, last_packet_id_key)
    return redis.call('ZCARD', messages_key) ~= state.references
        or (redis.call('GET', last_packet_id_key) or '') ~= state.last_packet_id
end
