#!lua flags=no-writes
--[[
Purpose
    List messages that wait in one list, next in line first.
KEYS
    [1-2]  messages, details
    [3]  ready           list of ids
ARGV
    [1]  offset          ids to skip, 0 or more
    [2]  limit           most ids, 1 to 1,000; fewer when their messages are longer than 1,000,000 bytes together
Returns
    {*messages(id, attempts, stalls, message)}  four values per id; the last is empty when the message is gone
Errors
    INVALID  an argument breaks the rules above
Cost
    O(offset + M) for M ids; about 5 us per id on two busy cores. At most 1,000.
]]
--- @include "includes/fanout_entries"
--- @include "includes/fanout_page"

local reply, bytes = {}, 0
for _, id in ipairs(redis.call('LRANGE', KEYS[3], offset, offset + limit - 1)) do
    bytes = bytes + redis.call('HSTRLEN', KEYS[1], id)
    if #reply > 0 and bytes > BYTES_PER_CALL then
        break
    end
    local attempts, stalls = read_entry(redis.call('HGET', KEYS[2], id))
    local size = #reply
    reply[size + 1], reply[size + 2], reply[size + 3] = id, attempts, stalls
    reply[size + 4] = redis.call('HGET', KEYS[1], id) or ''
end
return reply
