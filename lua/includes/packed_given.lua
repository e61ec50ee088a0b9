--- @include "includes/integers"
--- @include "includes/packed_head"

-- Return serial, record and expiry of the message whose serial is at a place of the arguments; no serial and an error
-- when there is none. index: number of the message in the error.
local function given_message(at, index)
    local serial, record = integer(ARGV[at]), ARGV[at + 1]
    if not serial or serial < 0 or #record < HEAD_BYTES then
        return nil, redis.error_reply('INVALID message ' .. index .. ' has no serial of 0 or more, or is no record')
    end
    local _, expires_at_ms = struct.unpack(HEAD, record)
    return serial, record, expires_at_ms
end
