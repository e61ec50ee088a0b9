--- @include "includes/import_state"
-- A broker that acknowledges or adds changes the count of references or the last packet id. Both may be the same again
-- after 65,535 messages, or after a purge: but the last packet id has lost the expiry that the import gave it, which
-- every save of another program takes off. Imports of earlier builds gave none, nor do those without a last packet id:
-- that key is absent until somebody adds. Our own stores note what they save and deliver. Once a repeated import has
-- noted a use, the session stays used, whatever its count is later.
local function touched(state, messages_key, last_packet_id_key)
    return state.used ~= ''
        or state.used_by_us
        or redis.call('ZCARD', messages_key) ~= state.references
        or (redis.call('GET', last_packet_id_key) or '') ~= state.last_packet_id
        or (state.until_ms ~= '' and redis.call('PEXPIRETIME', last_packet_id_key) == -1)
end
