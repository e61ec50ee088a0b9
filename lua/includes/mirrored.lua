--- @include "includes/outbox"
-- For what seldom happens: the other store of a session with a mirror looks at all of it.
local function note_all(session_key)
    if redis.call('HGET', session_key, 'mirror') then
        note_change(session_key, '*')
    end
end
