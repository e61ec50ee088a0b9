--- @include "includes/packed_record"
-- Returns a function that says under which serial a message with a packet id is: its serial; or nothing if there is
-- none; or nothing and true if it may be among those that have to be looked through. Packet ids count up with serials
-- from state.since on.
local PACKET_IDS = 65535
local function places(key, state)
    return function(packet_id, serial)
        if serial then
            if serial >= state.since then
                return (serial + state.offset - 1) % PACKET_IDS + 1 == packet_id and serial or nil
            end
            local record = redis.call('HGET', key, string.format('%d', serial))
            return record and #record >= HEAD_BYTES and struct.unpack('>H', record) == packet_id and serial or nil
        end
        -- All packet ids of messages are within 65535 of the last one that was given out, or, since somebody has set
        -- that one, within twice as many.
        local found = state.ids - (state.ids - packet_id) % PACKET_IDS - state.offset
        for _ = 1, 2 do
            if found < math.max(state.since, state.head) then
                break
            end
            if redis.call('HEXISTS', key, string.format('%d', found)) == 1 then
                return found
            end
            found = found - PACKET_IDS
        end
        return nil, state.head < state.since
    end
end
