-- Writes state and expiry after keep(). A session with a mirror stays until the other store has its changes.
redis.call('HSET', session_key, 's', packed(state))
if moved and state.until_ms == -1 then
    redis.call('PERSIST', session_key)
elseif moved and not (owned and owned[4]) then
    redis.call('PEXPIREAT', session_key, string.format('%d', state.until_ms))
end
if owned and owned[4] then
    --- @include "includes/outbox"
    note_change(session_key, '-')
end
