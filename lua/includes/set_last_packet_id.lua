--- @include "includes/integers"
--- @include "includes/time"
local function is_keep_ms(text)
    local keep_ms = integer(text)
    return text == '' or (keep_ms ~= nil and keep_ms > 0)
end

-- The key's expiry is never made earlier. Without a time to keep, its expiry stays as it is.
local function set_last_packet_id(key, value, keep_ms)
    local expires_at_ms = redis.call('PEXPIRETIME', key)
    local wanted = keep_ms ~= '' and now_ms() + integer(keep_ms)
    if wanted and (expires_at_ms == -2 or (expires_at_ms >= 0 and expires_at_ms < wanted)) then
        redis.call('SET', key, value, 'PXAT', string.format('%d', wanted))
    else
        redis.call('SET', key, value, 'KEEPTTL')
    end
end
