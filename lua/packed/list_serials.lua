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
    {cursor, *serials}  of the next call, 0 after the last one; serials of messages
Errors
    INVALID  the cursor is not one, or count is not 1 to 200
Cost
    O(M) for M fields; about 1 us per message of 1 KB, which the server reads with its name, and 40 us per page of many.
]]
--- @include "includes/hash_page"
--- @include "includes/integers"

local count = integer(ARGV[2])
if #KEYS ~= 1 or #ARGV ~= 2 or not string.find(ARGV[1], '^[%x/]+$') or not count or count < 1 or count > 200 then
    return redis.error_reply('INVALID 1 key, a cursor and a count of 1 to 200 are expected')
end
local cursor, page = hash_page(KEYS[1], ARGV[1], ARGV[2])
local found = { cursor }
for index = 1, #page, 2 do
    local name = page[index]
    if string.find(name, '^%d+$') then
        found[#found + 1] = name
    end
end
return found
