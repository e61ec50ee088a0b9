#!lua flags=allow-oom
--[[
Purpose
    Remove a session. The caller reads the highest serial first, then lists references and calls page by page; messages
    saved meanwhile have greater serials and stay. With the last reference the session's other keys are removed, too; in
    a session with a mirror, owner, epoch and the record of the change stay until the other store has it.
KEYS
    [1]  messages        sorted set of references
    [2]  last_packet_id  last packet id
    [3]  session         fields of the session
    [4+] payloads        keys of messages to remove; none for a session without messages
ARGV
    [1]  epoch           of the session as the caller knows it; empty: the caller does not know owners
    [2]  up_to_serial    references with a greater serial stay
    [3+] members         references that name no payload key of the session: only the reference is removed
Returns
    {removed, remaining}  references removed by this call and left in the set
Errors
    INVALID    up_to_serial is not an integer, or there are too many payload keys or members
    NOT_OWNER  the other store owns the session or is about to
    STALE      the session has another epoch than the caller
Cost
    O(M log N) for M keys and members and N references; about 3 us per key. At most 1,000 in all.
]]
--- @include "includes/guard"
--- @include "includes/integers"
--- @include "includes/outbox"
--- @include "includes/slices"

local PER_CALL = 1000
local FIRST_PAYLOAD = 4
local FIRST_MEMBER = 3

local messages_key, last_packet_id_key, session_key, epoch = KEYS[1], KEYS[2], KEYS[3], ARGV[1]
local up_to_serial = integer(ARGV[2])
if #KEYS < FIRST_PAYLOAD - 1 or #ARGV < FIRST_MEMBER - 1 then
    return redis.error_reply('INVALID 3 keys, payload keys, an epoch, the highest serial and members are expected')
end
if #KEYS - FIRST_PAYLOAD + 1 + #ARGV - FIRST_MEMBER + 1 > PER_CALL then
    return redis.error_reply('INVALID a call takes at most ' .. PER_CALL .. ' payload keys and members')
end
if not up_to_serial then
    return redis.error_reply('INVALID the highest serial is not an integer')
end

local fields = redis.call('HMGET', session_key, 'owner', 'import', 'epoch', 'mirror')
-- An incomplete import may be purged.
fields[2] = false
local refused_reply = refusal(fields, epoch)
if refused_reply then
    return refused_reply
end

-- Returns the members of a list, from an index on, that are in the set with a serial that may be removed.
local function removable(list, first)
    local found = {}
    if #list >= first then
        for position, score in ipairs(redis.call('ZMSCORE', messages_key, unpack(list, first))) do
            if score and tonumber(score) <= up_to_serial then
                found[#found + 1] = list[first - 1 + position]
            end
        end
    end
    return found
end

local payload_keys = removable(KEYS, FIRST_PAYLOAD)
local members = removable(ARGV, FIRST_MEMBER)
local remaining = redis.call('ZCARD', messages_key)
local removed = 0
if fields[4] and (#payload_keys > 0 or #members > 0 or remaining == 0) then
    note_change(session_key, '*')
end
if #payload_keys > 0 then
    redis.call('UNLINK', unpack(payload_keys))
end
for position = 1, #members do
    payload_keys[#payload_keys + 1] = members[position]
end
if #payload_keys > 0 then
    -- While a cluster moves a slot, a script must not touch a key again that it has emptied.
    removed = redis.call('ZREM', messages_key, unpack(payload_keys))
end
remaining = remaining - removed
if remaining == 0 then
    if fields[4] then
        local kept = { owner = 1, epoch = 1, mirror = 1, outbox = 1, outbox_version = 1, outbox_ms = 1 }
        local going = {}
        for _, name in ipairs(redis.call('HKEYS', session_key)) do
            if not kept[name] then
                going[#going + 1] = name
            end
        end
        each_slice(going, function(...)
            redis.call('HDEL', session_key, ...)
        end)
        redis.call('UNLINK', last_packet_id_key)
    else
        redis.call('UNLINK', last_packet_id_key, session_key)
    end
end
return { removed, remaining }
