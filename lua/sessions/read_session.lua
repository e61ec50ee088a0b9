#!lua flags=no-writes
--[[
Purpose
    Read the state of a session, without its messages.
KEYS
    [1]  messages        sorted set of references
    [2]  last_packet_id  last packet id
    [3]  session         fields of the session
ARGV
    none
Returns
    {last_packet_id, references, highest, now_ms, *fields(field, value)}  last packet id, empty for none; members of
                              the set; highest score as text, empty for an empty set; the server's time; the fields of
                              the session; with delivered_serial also sent_up_to: serial up to which messages of the
                              set have been sent, -1 for none; for an imported session also import_used: 1 if it was
                              used since, else 0
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
