--- @include "includes/integers"
-- State of a session's import: its plan and progress. Missing fields read as ''.
local function import_state(session_key)
    local fields = redis.call(
        'HMGET', session_key, 'plan', 'import', 'epoch', 'owner', 'references', 'imported_last_packet_id', 'used',
        'imported_until_ms', 'saved_last_packet_id', 'delivered_serial'
    )
    for index = 1, 10 do
        fields[index] = fields[index] or ''
    end
    return {
        plan = fields[1],
        import = fields[2],
        epoch = integer(fields[3]) or 0,
        owner = fields[4],
        references = integer(fields[5]) or 0,
        last_packet_id = fields[6],
        used = fields[7],
        until_ms = fields[8],
        used_by_us = fields[9] ~= '' or fields[10] ~= '',
    }
end
