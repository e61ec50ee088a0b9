#!lua flags=allow-oom
--[[
Purpose
    Give the keys of a session without waiting messages an expiry, unless the session is used before. A broker that
    saves a message writes the last packet id again, without expiry; our own saves set the expiry of all keys.
KEYS
    [1]  messages        sorted set of references
    [2]  last_packet_id  packet id given out last
    [3]  session         fields of the session
ARGV
    [1]  keep_ms         shortest time for which the keys are kept from now on
    [2]  said_ms         0 to return only what would be done; or the last number of such a reply, to do it
    [3]  all_dead        1: count as if the set, which holds only dead references, were empty; for dry runs
Returns
    {"expires", expires_at_ms, last_packet_id, session, before_ms, as_of_ms}  instant that is set; the memory of each
                            key, 0 if it does not exist or has an expiry; the expiry that the last packet id has before,
                            -1 for none; the instant for which the reply holds
    {"kept"}                a message waits, or every key has an expiry; nothing was written
    {"held"}                the session must last for ever, is imported or moved, belongs to the other store or has
                            a mirror there
    {"foreign"}             the keys are of another type, or hold what neither a broker nor our stores write
Errors
    INVALID  3 keys and 3 arguments as above are expected
Cost
    O(1); about 8 us.
]]
--- @include "includes/as_of"
--- @include "includes/kept_for_ever"
--- @include "includes/last_packet_id"
--- @include "includes/ownership"

local messages_key, last_packet_id_key, session_key = KEYS[1], KEYS[2], KEYS[3]
local keep_ms, said_ms, all_dead = integer(ARGV[1]), integer(ARGV[2]), ARGV[3]
if #KEYS ~= 3 or #ARGV ~= 3 or not keep_ms or keep_ms < 1 or not said_ms or said_ms < 0
    or (all_dead ~= '0' and all_dead ~= '1')
then
    return redis.error_reply('INVALID 3 keys, a life of 1 ms or more, an instant of 0 or more, and 0 or 1 are expected')
end

if all_dead == '0' and redis.call('EXISTS', messages_key) == 1 then
    return { 'kept' }
end
local going, before_ms = {}, -1
for _, key in ipairs({ last_packet_id_key, session_key }) do
    local until_ms = redis.call('PEXPIRETIME', key)
    -- The expiry that an import sets does not count.
    if until_ms == -1 or until_ms == tonumber(KEPT_MS) then
        going[#going + 1] = key
        before_ms = math.max(before_ms, until_ms)
    end
end
if #going == 0 then
    return { 'kept' }
end
local id_type, session_type = redis.call('TYPE', last_packet_id_key).ok, redis.call('TYPE', session_key).ok
if (id_type ~= 'string' and id_type ~= 'none') or (session_type ~= 'hash' and session_type ~= 'none') then
    return { 'foreign' }
end
if id_type == 'string' and not is_last_packet_id(redis.call('GET', last_packet_id_key)) then
    return { 'foreign' }
end
local now = as_of(said_ms)
local expires_at_ms = now + keep_ms
if session_type == 'hash' then
    local fields = redis.call(
        'HMGET', session_key, 'owner', 'import', 'until_ms', 'last_serial', 'delivered_serial', 'rekeyed', 'mirror'
    )
    -- A session that is moved from another hash tag is left to that remedy; in one with a mirror, its notes must stay.
    if fields[6] or fields[7] then
        return { 'held' }
    end
    if not (fields[1] or fields[2] or fields[4] or fields[5]) then
        return { 'foreign' }
    end
    if fields[3] == 'never' or not takes_messages(fields[1], fields[2]) then
        return { 'held' }
    end
    expires_at_ms = math.max(expires_at_ms, integer(fields[3] or '') or 0)
end
local bytes = { [last_packet_id_key] = 0, [session_key] = 0 }
for _, key in ipairs(going) do
    bytes[key] = redis.call('MEMORY', 'USAGE', key)
    if said_ms > 0 then
        redis.call('PEXPIREAT', key, string.format('%d', expires_at_ms))
    end
end
return { 'expires', expires_at_ms, bytes[last_packet_id_key], bytes[session_key], before_ms, now }
