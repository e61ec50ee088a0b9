#!lua flags=allow-oom
--[[
Purpose
    Undo an import that was not used: remove the references whose payload keys are given, and these keys. With the last
    reference the session's other keys are removed, too. The caller reads references by ZRANGE and calls page by page.
    Only the call that names a message notices that a broker has rewritten it, so a caller with several pages first
    checks all of them.
KEYS
    [1]  messages        sorted set of references
    [2]  last_packet_id  packet id given out last
    [3]  session         owner, epoch and state of the import
    [4+] payloads        keys of messages to remove; none for a session without messages
ARGV
    [1]  plan            id of the plan whose import may be dropped
Returns
    {removed, remaining}  references removed by this call and left in the set; 0 and 0 when there is nothing to remove
Errors
    INVALID   an argument is missing, or there are too many payload keys
    MOVED_ON  the session exists but this plan did not import it, or it has been used since
Cost
    O(M log N) for M payload keys and N references; about 4 us per key. At most 5,000 keys.
]]
--- @include "includes/import_state"
--- @include "includes/slices"
--- @include "includes/touched"

local PAYLOAD_KEYS_PER_CALL = 5000
local FIRST_PAYLOAD = 4

local messages_key, last_packet_id_key, session_key = KEYS[1], KEYS[2], KEYS[3]
local plan = ARGV[1]

if #KEYS < FIRST_PAYLOAD - 1 or #ARGV ~= 1 or plan == '' then
    return redis.error_reply('INVALID 3 keys, payload keys and the plan id are expected')
end
if #KEYS - FIRST_PAYLOAD + 1 > PAYLOAD_KEYS_PER_CALL then
    return redis.error_reply('INVALID a call takes at most ' .. PAYLOAD_KEYS_PER_CALL .. ' payload keys')
end

local state = import_state(session_key)
if state.plan ~= plan then
    if state.plan ~= '' then
        return redis.error_reply('MOVED_ON plan ' .. state.plan .. ' imported the session')
    end
    if redis.call('EXISTS', messages_key, last_packet_id_key, session_key) > 0 then
        return redis.error_reply('MOVED_ON the session was not imported')
    end
    return { 0, 0 }
end
if touched(state, messages_key, last_packet_id_key) then
    return redis.error_reply('MOVED_ON the session has been used since it was imported')
end

-- Every message of an import has an expiry. A broker that receives PUBREC writes the message again without expiry, and
-- changes nothing else.
local payload_keys = {}
for index = FIRST_PAYLOAD, #KEYS do
    local key = KEYS[index]
    if redis.call('PEXPIRETIME', key) == -1 and redis.call('ZSCORE', messages_key, key) then
        return redis.error_reply('MOVED_ON the session has been used since it was imported')
    end
    payload_keys[#payload_keys + 1] = key
end
local removed = 0
each_slice(payload_keys, function(...)
    local given = { ... }
    local referenced = {}
    for index, score in ipairs(redis.call('ZMSCORE', messages_key, ...)) do
        if score then
            referenced[#referenced + 1] = given[index]
        end
    end
    if #referenced > 0 then
        redis.call('UNLINK', unpack(referenced))
        removed = removed + redis.call('ZREM', messages_key, unpack(referenced))
    end
end)

local remaining = state.references - removed
if remaining == 0 then
    redis.call('UNLINK', last_packet_id_key, session_key)
elseif removed > 0 then
    redis.call('HSET', session_key, 'references', string.format('%d', remaining))
end
return { removed, remaining }
