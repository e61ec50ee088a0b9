-- Reads the state, and returns the error if the caller may not write to the session.
local state = unpacked(redis.call('HGET', session_key, 's'))
if not state or state.guarded == 1 or epoch ~= '' then
    --- @include "includes/guard"
    local refused_reply = refusal(redis.call('HMGET', session_key, 'owner', 'import', 'epoch'), epoch)
    if refused_reply then
        return refused_reply
    end
end
