#!lua flags=allow-oom
--[[
Purpose
    Remove messages that no reference of their session names, if they are too old to be part of a save in progress, and
    give those that cannot be read an expiry.
KEYS
    [1]  messages        sorted set of references
    [2+] payloads        keys of messages
ARGV
    [1]  default_ttl_ms  time after which a record expires that has no expiry and cannot be read
    [2]  grace_ms        a message younger than this is left alone
    [3]  said_ms         0 to return only which expiries would be set; or the instant that begins such a reply, to set
                         them
Returns
    {as_of_ms, *outcomes(outcome, number)}
                            the instant for which the reply holds, then a pair per key, from the first on as many as
                            fit: unlinked and the memory of the key; limited and the instant at which it will expire;
                            young, unreadable, wrong_type or referenced (also when the key is gone), and 0, for keys
                            that are left alone
Errors
    INVALID  an argument breaks the rules above, or there are no payload keys or too many
Cost
    O(M log N) for M payload keys and N references; about 10 us per message of 1 KB. At most 100 keys, and 1 MB of JSON
    unless the first has more.
]]
--- @include "includes/as_of"
--- @include "includes/message_facts"

local messages_key = KEYS[1]
local FIRST_PAYLOAD = 2
--- @include "includes/mending"

local now = as_of(said_ms)
local kind = redis.call('TYPE', messages_key).ok
local reply, bytes = { now }, 0
for index = FIRST_PAYLOAD, #KEYS do
    local key = KEYS[index]
    local outcome, number = 'referenced', 0
    if kind ~= 'zset' and kind ~= 'none' then
        outcome = 'wrong_type'
    elseif redis.call('EXISTS', key) == 1 and (kind == 'none' or not redis.call('ZSCORE', messages_key, key)) then
        -- MGET reads a key of another type as nothing.
        local json = redis.call('MGET', key)[1]
        bytes = bytes + #(json or '')
        if bytes > BYTES_PER_CALL and #reply > 1 then
            return reply
        end
        local facts = json and message_facts(json)
        if not json then
            outcome = 'wrong_type'
        elseif facts and facts.time_ms + grace_ms <= now then
            outcome, number = 'unlinked', redis.call('MEMORY', 'USAGE', key)
            redis.call('UNLINK', key)
        elseif facts then
            outcome = 'young'
        elseif redis.call('PEXPIRETIME', key) == -1 then
            outcome, number = 'limited', now + default_ttl_ms
            if said_ms > 0 then
                redis.call('PEXPIREAT', key, string.format('%d', number))
            end
        else
            outcome = 'unreadable'
        end
    end
    reply[#reply + 1] = outcome
    reply[#reply + 1] = number
end
return reply
