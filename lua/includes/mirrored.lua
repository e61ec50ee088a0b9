--- @include "includes/outbox"
-- For rare changes: the mirror of the session then compares all of it.
local function note_all(session_key)
    if redis.call('HGET', session_key, 'mirror') then
        note_change(session_key, '*')
    end
end
