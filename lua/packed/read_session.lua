#!lua flags=no-writes
--[[
Purpose
    Read the state of a session, without its messages.
KEYS
    [1]  session  the session
ARGV
    none
Returns
    {now_ms, fields, highest, state, *values}  the server's time; fields of the hash; highest serial of a message as
                  text, empty for none; state as includes/packed_format describes it, empty for none; owner, epoch,
                  import, plan, references and imported_last_packet_id, empty for none, and whether the session was
                  used since its import: 1, or empty
Errors
    INVALID  1 key and no arguments are expected
Cost
    O(1) if the newest message waits, else O(N) for N fields; about 6 us, and 0.2 us per field.
]]
--- @include "includes/packed_import"
--- @include "includes/packed_state"
--- @include "includes/time"

local session_key = KEYS[1]
if #KEYS ~= 1 or #ARGV ~= 0 then
    return redis.error_reply('INVALID 1 key and no arguments are expected')
end
local text = redis.call('HGET', session_key, 's')
local fields = redis.call('HLEN', session_key)
local state = unpacked(text)
local highest = ''
if state and fields > state.others then
    highest = string.format('%d', state.last)
    if redis.call('HEXISTS', session_key, highest) == 0 then
        local greatest = -1
        for _, name in ipairs(redis.call('HKEYS', session_key)) do
            local serial = string.find(name, '^%d+$') and tonumber(name)
            if serial and serial > greatest then
                greatest = serial
            end
        end
        highest = string.format('%d', greatest)
    end
end
local reply = { now_ms(), fields, highest, text or '' }
local imported = import_of(session_key)
for index = 1, 6 do
    reply[4 + index] = imported[index] or ''
end
reply[11] = imported[4] and used_since(imported, state, fields) and '1' or ''
return reply
