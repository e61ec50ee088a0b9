#!lua flags=no-writes
--[[
Purpose
    Read messages in the order of their sequences, without consuming them.
KEYS
    [1-3]  order, times, values
ARGV
    [1]  after_sequence  only messages after this one, 0 or more
    [2]  limit           messages to read, 1 to 500
    [3]  max_bytes       limit for bytes of keys and values, 1 or more; the first message comes whatever its size
Returns
    {next_after_sequence, *messages(key, ms, sequence, value)}
                         start of the next page, -1 after the last one; then four per message: its instant is 0
                         where that is lost, and the value is "<sequence> <flags> <record>", with flags 1 for a
                         tombstone and else 0, unless it was damaged
Errors
    INVALID  an argument breaks the rules above
Cost
    O(log N + M) for N keys and M messages; about 4 us per message of 1 KB.
]]
--- @include "includes/integers"

local LIMIT = 500

local order_key, times_key, values_key = KEYS[1], KEYS[2], KEYS[3]
local after, limit, max_bytes = integer(ARGV[1]), integer(ARGV[2]), integer(ARGV[3])
if #KEYS ~= 3 or #ARGV ~= 3 or not after or after < 0 or not limit or limit < 1 or limit > LIMIT
    or not max_bytes or max_bytes < 1
then
    return redis.error_reply('INVALID 3 keys, a sequence, a limit from 1 to ' .. LIMIT .. ' and max_bytes are expected')
end

local reply, bytes = { -1 }, 0
local rows = redis.call(
    'ZRANGE', order_key, string.format('(%.0f', after), '+inf', 'BYSCORE', 'LIMIT', '0', limit, 'WITHSCORES'
)
for place = 1, #rows, 2 do
    local key = rows[place]
    bytes = bytes + #key + redis.call('HSTRLEN', values_key, key)
    if bytes > max_bytes and #reply > 1 then
        reply[1] = after
        return reply
    end
    after = rows[place + 1] + 0
    local value = redis.call('HGET', values_key, key)
    if value then
        reply[#reply + 1] = key
        reply[#reply + 1] = tonumber(redis.call('ZSCORE', times_key, key) or '0')
        reply[#reply + 1] = after
        reply[#reply + 1] = value
    end
end
if #rows == 2 * limit then
    reply[1] = after
end
return reply
