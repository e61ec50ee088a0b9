-- Reads the state, and returns the error if the caller may not write to the session. Where the
-- owner was looked at, owned[4] says whether there is a mirror, for which changes are noted.
local state = unpacked(redis.call('HGET', session_key, 's'))
local owned
if not state or state.guarded == 1 or epoch ~= '' then
    --- @include "includes/guard"
    owned = redis.call('HMGET', session_key, 'owner', 'import', 'epoch', 'mirror')
    local refused_reply = refusal(owned, epoch)
    if refused_reply then
        return refused_reply
    end
end
