#!lua flags=no-writes
--[[
Purpose
    List where messages are, in a session that has far more places than messages. Call it until the cursor is 0; what
    stays in the session meanwhile is listed, perhaps twice, in no order.
KEYS
    [1]  session  the session
ARGV
    [1]  cursor   0, or that of the call before
    [2]  count    fields to look at, about
Returns
    {cursor, server, *serials}  of the next call, 0 after the last one; run_id of the server: to one with another run_id
                                the cursor means nothing; serials of messages
Errors
    INVALID  the cursor is not an integer, or count is not 1 to 200
Cost
    O(M) for M fields; about 10 us per call and 1 us per message of 1 KB, which the server reads with its name.
]]
--- @include "includes/integers"

local count = integer(ARGV[2])
if #KEYS ~= 1 or #ARGV ~= 2 or not string.find(ARGV[1], '^%d+$') or not count or count < 1 or count > 200 then
    return redis.error_reply('INVALID 1 key, a cursor and a count of 1 to 200 are expected')
end
local page = redis.call('HSCAN', KEYS[1], ARGV[1], 'COUNT', ARGV[2])
local found = { page[1], string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') }
for index = 1, #page[2], 2 do
    local name = page[2][index]
    if string.find(name, '^%d+$') then
        found[#found + 1] = name
    end
end
return found
