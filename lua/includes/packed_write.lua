--- @include "includes/packed_format"
-- Returns the state as it is stored.
local function packed(state)
    return struct.pack(
        STATE, state.last, state.ids, state.bound, state.free, state.largest, state.earliest, state.until_ms,
        state.guarded, state.since, state.offset, state.head, state.delivered, state.others, state.trimmed,
        state.expired, state.refused, state.quarantined
    )
end
