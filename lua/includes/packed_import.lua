-- Reads owner and import of a session, and returns whether it was used since its import: each use changes the number of
-- its fields or its state.
local function import_of(key)
    return redis.call(
        'HMGET', key, 'owner', 'epoch', 'import', 'plan', 'references', 'imported_last_packet_id', 'imported_state',
        'used', 'mirror'
    )
end

-- What shows of a state, beside the number of messages, whether the session was used.
local function state_of_import(state)
    return string.format('%.0f:%.0f:%.0f', state.last, state.ids, state.delivered)
end

local function used_since(imported, state, fields)
    return imported[8] or not state or fields - state.others ~= tonumber(imported[5] or '0')
        or state_of_import(state) ~= imported[7]
end
