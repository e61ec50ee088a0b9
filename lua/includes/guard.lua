--- @include "includes/ownership"
-- Returns the error for a caller that may not write to a session, else nothing. The session's owner, import and epoch
-- come first in noted. Epochs are compared as texts; the claimed one is empty if the caller does not know owners.
local function refusal(noted, claimed)
    if noted[1] == 'fenced' then
        return redis.error_reply('NOT_OWNER the session is on its way to the other store: repeat the call in a moment')
    end
    if not takes_messages(noted[1], noted[2]) then
        return redis.error_reply('NOT_OWNER the other store owns the session, or its import is not complete')
    end
    if claimed ~= '' and claimed ~= noted[3] then
        return redis.error_reply('STALE epoch ' .. (noted[3] or 'none') .. ' owns the session: ask for its owner')
    end
    return nil
end
