--- @include "includes/outbox"
-- For what seldom happens: the other store of a session with a mirror looks at all of it.
local function note_all(session_key)
    if redis.call('HEXISTS', session_key, 'mirror') == 1 then
        note_change(session_key, '*')
    end
end
