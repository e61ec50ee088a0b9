#!lua flags=allow-oom
--[[
Purpose
    Give keys the expiry back that they had, mostly none, if it still is the one that was set.
KEYS
    [1+] keys            keys of one session
ARGV
    [1+] instants_ms     a pair per key: the expiry that it must have, and the one that it had before, -1 for none
Returns
    persisted
Errors
    INVALID  keys and instants do not pair, or there are too many
Cost
    O(M) for M keys; about 1 us per key. At most 1,000 keys.
]]
--- @include "includes/packed_state"
--- @include "includes/packed_write"

local KEYS_PER_CALL = 1000
local FIRST_KEY = 1
local FIRST_EXPIRY = 1

local count = #KEYS
if count < 1 or count > KEYS_PER_CALL or #ARGV ~= 2 * count then
    return redis.error_reply('INVALID 1 to ' .. KEYS_PER_CALL .. ' keys and two instants for each are expected')
end

local persisted = 0
for position = 0, count - 1 do
    local key = KEYS[FIRST_KEY + position]
    local set_ms, before_ms = ARGV[FIRST_EXPIRY + 2 * position], ARGV[FIRST_EXPIRY + 2 * position + 1]
    if string.format('%d', redis.call('PEXPIRETIME', key)) == set_ms then
        -- The state of a packed session says which expiry its key has: by that, the next save sets another one or not.
        local text = redis.call('TYPE', key).ok == 'hash' and redis.call('HGET', key, 's')
        local state = text and #text == struct.size(STATE) and unpacked(text)
        if state and state.until_ms == tonumber(set_ms) then
            state.until_ms = tonumber(before_ms)
            redis.call('HSET', key, 's', packed(state))
        end
        if before_ms == '-1' then
            redis.call('PERSIST', key)
        else
            redis.call('PEXPIREAT', key, before_ms)
        end
        persisted = persisted + 1
    end
end
return persisted
