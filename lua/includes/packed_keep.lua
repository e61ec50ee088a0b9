-- Writes state and expiry after keep().
redis.call('HSET', session_key, 's', packed(state))
if moved and state.until_ms == -1 then
    redis.call('PERSIST', session_key)
elseif moved then
    redis.call('PEXPIREAT', session_key, string.format('%d', state.until_ms))
end
