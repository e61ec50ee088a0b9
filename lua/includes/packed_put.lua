-- Notes in the state that a message comes to a place. The next save looks through the packet ids.
local PACKET_IDS = 65535
local function put(state, serial, packet_id, expires_at_ms, size_bytes)
    local counts_up = serial <= state.last and (serial + state.offset - 1) % PACKET_IDS + 1 == packet_id
    state.head, state.last = math.min(state.head, serial), math.max(state.last, serial)
    state.largest = math.max(state.largest, size_bytes)
    if expires_at_ms >= 0 then
        state.earliest = state.earliest == 0 and expires_at_ms or math.min(state.earliest, expires_at_ms)
    end
    state.free = state.ids
    if serial >= state.since and not counts_up then
        state.since, state.offset = state.last + 1, state.ids - state.last
    end
end
