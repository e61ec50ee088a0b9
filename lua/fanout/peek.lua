#!lua flags=no-writes
--[[
Purpose
    List messages that wait in one lane, next in line first: those of its list, then those of the log.
KEYS
    [1-5]  state, messages, log, cursors, details
    [6]  ready           list of ids
ARGV
    [1]  offset          ids to skip, 0 or more
    [2]  limit           most ids, 1 to 1,000; fewer when their messages are longer than 1,000,000 bytes together
    [3]  consumer        its name
    [4]  lane            number of the lane, from 1
    [5]  lanes           number of its lanes
Returns
    {*messages(id, attempts, stalls, message)}  four values per id; the last is empty when the message is gone
Errors
    INVALID  an argument breaks the rules above
Cost
    O(offset + M) for M ids; about 5 us per id on two busy cores. At most 1,000, and 100,000 in the log looked at.
]]
--- @include "includes/fanout_entries"
--- @include "includes/fanout_page"
--- @include "includes/fanout_read_log"

local IN_LOG_PER_CALL = 100000
--- @keys
local lane, lanes = integer(ARGV[4]), integer(ARGV[5])
if #KEYS ~= 6 or #ARGV ~= 5 or not lane or not lanes or lane < 1 or lane > lanes then
    return redis.error_reply('INVALID 6 keys, the name of a consumer, a lane and their number are expected')
end

local reply, bytes = {}, 0
local ids = redis.call('LRANGE', keys.ready, offset, offset + limit - 1)
local left, looked_at = limit - #ids, 0
local to_skip = math.max(offset - redis.call('LLEN', keys.ready), 0)
local reached, cursor = cursor_of(keys, ARGV[3])
while left > 0 and cursor and cursor < reached and looked_at < IN_LOG_PER_CALL do
    local lists, to = read_log(keys, cursor, reached, ENTRIES_PER_READ, lanes)
    for _, id in ipairs(lists[lane]) do
        if to_skip == 0 and left > 0 then
            ids[#ids + 1] = id
            left = left - 1
        end
        to_skip = math.max(to_skip - 1, 0)
    end
    cursor, looked_at = to, looked_at + to - cursor
end
for _, id in ipairs(ids) do
    bytes = bytes + redis.call('HSTRLEN', keys.messages, id)
    if #reply > 0 and bytes > BYTES_PER_CALL then
        break
    end
    local attempts, stalls = read_entry(redis.call('HGET', keys.details, id))
    local size = #reply
    reply[size + 1], reply[size + 2], reply[size + 3] = id, attempts, stalls
    reply[size + 4] = redis.call('HGET', keys.messages, id) or ''
end
return reply
