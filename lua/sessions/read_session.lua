#!lua flags=no-writes
--[[
Purpose
    Read what a session says about itself, without its messages.
KEYS
    [1]  messages        sorted set of references
    [2]  last_packet_id  packet id given out last
    [3]  session         fields of the session
ARGV
    none
Returns
    {last_packet_id, references, highest, now_ms, *fields(field, value)}  packet id given out last, empty for none;
                              members of the set; highest score as text, empty for an empty set; the server's time;
                              the fields of the session; beside delivered_serial also sent_up_to: up to which serial
                              that holds for the messages of the set, -1 for none; of an imported session also
                              import_used: 1 when somebody has used it since, else 0
Errors
    INVALID  3 keys and no arguments are expected
Cost
    O(F + log N) for F fields and N references; about 7 us.
]]
--- @include "includes/time"
--- @include "includes/touched"

if #KEYS ~= 3 or #ARGV ~= 0 then
    return redis.error_reply('INVALID 3 keys and no arguments are expected')
end
local reply = {
    redis.call('GET', KEYS[2]) or '',
    redis.call('ZCARD', KEYS[1]),
    redis.call('ZRANGE', KEYS[1], '0', '0', 'REV', 'WITHSCORES')[2] or '',
    now_ms(),
}
for index, text in ipairs(redis.call('HGETALL', KEYS[3])) do
    reply[4 + index] = text
end
local memory = redis.call(
    'HMGET', KEYS[3], 'delivered_serial', 'delivered_at', 'saved_last_packet_id', 'last_serial', 'owner'
)
if memory[1] then
    --- @include "includes/delivered"
    reply[#reply + 1] = 'sent_up_to'
    reply[#reply + 1] = string.format('%d', delivered_up_to(KEYS[1], reply[1], memory))
end
local imported = import_state(KEYS[3])
if imported.plan ~= '' then
    reply[#reply + 1] = 'import_used'
    reply[#reply + 1] = touched(imported, KEYS[1], KEYS[2]) and '1' or '0'
end
return reply
