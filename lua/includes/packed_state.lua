--- @include "includes/packed_format"
-- Reads the state of a session; nothing if there is none.
local function unpacked(text)
    if not text then
        return nil
    end
    local state = {}
    state.last, state.ids, state.bound, state.free, state.largest, state.earliest, state.until_ms, state.guarded,
        state.since, state.offset, state.head, state.delivered, state.others, state.trimmed, state.expired,
        state.refused, state.quarantined = struct.unpack(STATE, text)
    return state
end
