-- What is noted of the session, as fields; who may not write to it is answered. Most sessions have no owner and no
-- import, and most callers no epoch: for them nothing is made.
local fields = redis.call('HMGET', session_key, 'owner', 'import', 'epoch', 'mirror')
if fields[1] or fields[2] or epoch ~= '' then
    --- @include "includes/guard"
    local refused_reply = refusal(fields, epoch)
    if refused_reply then
        return refused_reply
    end
end
