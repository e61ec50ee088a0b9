--- @include "includes/integers"
-- Who wrote a session and how far it got. Missing fields read as ''.
local function import_state(session_key)
    local fields = redis.call(
        'HMGET', session_key, 'plan', 'import', 'epoch', 'owner', 'references', 'imported_last_packet_id', 'used'
    )
    for index = 1, 7 do
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
    }
end
