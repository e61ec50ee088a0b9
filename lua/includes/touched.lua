--- @include "includes/import_state"
-- Returns whether an imported session has been used. A broker that acknowledges or adds changes the number of
-- references or the last packet id. Both may be the same again after 65,535 messages, or after a purge; but then the
-- last packet id has lost the expiry of the import, since a save of another program removes it. Imports of earlier
-- builds set no expiry, and an import without a last packet id has no such key until a message is added. Our own stores
-- record what they save and deliver. Once a repeated import has recorded a use, the session stays used, whatever its
-- count is later.
local function touched(state, messages_key, last_packet_id_key)
    return state.used ~= ''
        or state.used_by_us
        or redis.call('ZCARD', messages_key) ~= state.references
        or (redis.call('GET', last_packet_id_key) or '') ~= state.last_packet_id
        or (state.until_ms ~= '' and redis.call('PEXPIRETIME', last_packet_id_key) == -1)
end
