#!lua flags=no-writes
--[[
Purpose
    List a consumer's dead letters, oldest first.
KEYS
    [1-3]  messages, dead, details
ARGV
    [1]  offset          letters to skip, 0 or more
    [2]  limit           most letters, 1 to 1,000; fewer when they are longer than 1,000,000 bytes together
Returns
    {total, *letters(id, died_ms, attempts, stalls, reason, message)}
                         letters in all; six values per letter; the last is empty when the message is gone
Errors
    INVALID  an argument breaks the rules above
Cost
    O(log D + M) for M of D letters; about 10 us per letter on two busy cores. At most 1,000.
]]
--- @include "includes/fanout_entries"
--- @include "includes/fanout_page"

if #KEYS ~= 3 or #ARGV ~= 2 then
    return redis.error_reply('INVALID 3 keys and 2 arguments are expected')
end
local reply = { redis.call('ZCARD', KEYS[2]) }
local letters = redis.call('ZRANGE', KEYS[2], offset, offset + limit - 1, 'WITHSCORES')
local bytes = 0
for index = 1, #letters, 2 do
    local id = letters[index]
    bytes = bytes + redis.call('HSTRLEN', KEYS[1], id)
    if index > 1 and bytes > BYTES_PER_CALL then
        break
    end
    local notes = redis.call('HMGET', KEYS[3], id, 'e' .. id)
    local attempts, stalls = read_entry(notes[1])
    local size = #reply
    reply[size + 1], reply[size + 2], reply[size + 3], reply[size + 4] = id, letters[index + 1], attempts, stalls
    reply[size + 5], reply[size + 6] = notes[2] or '', redis.call('HGET', KEYS[1], id) or ''
end
return reply
