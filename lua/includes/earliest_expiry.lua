--- @include "includes/integers"
-- A message that expires earlier than the session's recorded earliest expiry must be recorded, so that sweeps find it.
local function note_expiry(session_key, expires_at_ms)
    local known = integer(redis.call('HGET', session_key, 'earliest_expiry_ms') or '')
    if known and expires_at_ms >= 0 and expires_at_ms < known then
        redis.call('HSET', session_key, 'earliest_expiry_ms', string.format('%d', expires_at_ms))
    end
end
