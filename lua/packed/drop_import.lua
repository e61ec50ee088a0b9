#!lua flags=allow-oom
--[[
Purpose
    Undo an import that was not used: remove the session.
KEYS
    [1]  session  the session
ARGV
    [1]  plan     id of the plan whose import may be dropped
Returns
    messages  how many were removed; 0 when there is nothing to remove
Errors
    INVALID   1 key and the plan id are expected
    MOVED_ON  the session exists but this plan did not import it, or it has been used since
Cost
    O(1); about 10 us, as the server frees the memory in the background.
]]
--- @include "includes/packed_import"
--- @include "includes/packed_state"

local session_key, plan = KEYS[1], ARGV[1]
if #KEYS ~= 1 or #ARGV ~= 1 or plan == '' then
    return redis.error_reply('INVALID 1 key and the plan id are expected')
end
local imported = import_of(session_key)
local fields = redis.call('HLEN', session_key)
if imported[4] ~= plan then
    if imported[4] then
        return redis.error_reply('MOVED_ON plan ' .. imported[4] .. ' imported the session')
    end
    if fields > 0 then
        return redis.error_reply('MOVED_ON the session was not imported')
    end
    return 0
end
local state = unpacked(redis.call('HGET', session_key, 's'))
if imported[3] == 'done' and used_since(imported, state, fields) then
    return redis.error_reply('MOVED_ON the session has been used since it was imported')
end
redis.call('UNLINK', session_key)
return state and fields - state.others or 0
