#!lua flags=no-writes
--[[
Purpose
    Return the rows of a queue that its retention allows to remove, oldest first: with policy delete every row older
    than retention_ms, with acked_only such rows that are acknowledged, with compact only tombstones. A tombstone is
    also due when it is acknowledged and older than tombstone_ms; if not acknowledged, with delete, after retention_ms.
KEYS
    [1-6]  state, order, times, values, tombstones, in_flight
ARGV
    [1]  policy          delete, acked_only or compact, for a queue without its own retention
    [2]  retention_ms    0 or more
    [3]  tombstone_ms    0 or more
    [4]  override        1: the three above also for a queue with its own retention; else 0
    [5]  after_sequence  only rows after this one, 0 or more
    [6]  limit           rows to look at, 1 to 500
    [7]  with_values     1: return values; else 0
    [8]  max_bytes       limit for bytes of keys and values, if values are returned, 1 or more
    [9]  now             ms; empty: the server's clock
Returns
    {more, next_after_sequence, next_due_ms, policy, retention_ms, tombstone_ms, looked_at,
     *rows(key, sequence, ms, is_tombstone, bytes, is_acked, value)}
                         1 when rows after next_after_sequence are left to look at; instant of the next look at the
                         queue, -1 when nothing of it is ever due (rows that wait for an acknowledgement: in an hour);
                         the retention that was applied; rows that were looked at, due or not; then seven per due row:
                         bytes of key and value; value empty unless asked for
Errors
    INVALID  an argument breaks the rules above, or the retention that the queue was given does
Cost
    O(L log N) for a limit of L and N keys; about 3 us per row.
]]
--- @include "includes/instant"
--- @include "includes/retention"

local LIMIT = 500

local state_key, values_key, in_flight_key = KEYS[1], KEYS[4], KEYS[6]
local keys = { order = KEYS[2], times = KEYS[3], tombstones = KEYS[5] }
local after, limit, with_values, max_bytes = integer(ARGV[5]), integer(ARGV[6]), ARGV[7], integer(ARGV[8])
local now = instant(ARGV[9] or '-')
if #KEYS ~= 6 or #ARGV ~= 9 or not after or after < 0 or not limit or limit < 1 or limit > LIMIT
    or (with_values ~= '0' and with_values ~= '1') or not max_bytes or max_bytes < 1
then
    return redis.error_reply('INVALID 6 keys, 9 arguments and a limit from 1 to ' .. LIMIT .. ' are expected')
end
local fields = redis.call(
    'HMGET', state_key, 'retention_policy', 'retention_ms', 'tombstone_ms', 'acked', 'sent'
)
local rules, problem = retention_of(fields, ARGV[4], ARGV[1], ARGV[2], ARGV[3], now)
if not rules then
    return redis.error_reply('INVALID ' .. problem)
end

keys.has_tombstones = redis.call('ZCARD', keys.tombstones) > 0
local reply = { 0, after, 0, rules.policy, rules.retention_ms, rules.tombstone_ms, 0 }
local acked, sent = tonumber(fields[4] or '0'), tonumber(fields[5] or '0')
local rows = old_rows(rules, keys, after, limit)
if #rows == 2 * limit then
    reply[1] = 1
end
local names = {}
for place = 1, #rows, 2 do
    names[#names + 1] = rows[place]
end
if #names > 0 then
    local instants = redis.call('ZMSCORE', keys.times, unpack(names))
    local tombstones = redis.call('ZMSCORE', keys.tombstones, unpack(names))
    local bytes, found = 0, 0
    for place, key in ipairs(names) do
        local sequence, ms = rows[2 * place] + 0, tonumber(instants[place] or rules.old_ms)
        local is_tombstone, acknowledged = tombstones[place] and 1 or 0, is_acked(in_flight_key, sequence, acked, sent)
        if is_due(rules, ms, is_tombstone == 1, acknowledged) then
            local size = #key + redis.call('HSTRLEN', values_key, key)
            bytes = bytes + size
            if with_values == '1' and bytes > max_bytes and found > 0 then
                reply[1] = 1
                break
            end
            found = found + 1
            reply[#reply + 1] = key
            reply[#reply + 1] = sequence
            reply[#reply + 1] = ms
            reply[#reply + 1] = is_tombstone
            reply[#reply + 1] = size
            reply[#reply + 1] = acknowledged and 1 or 0
            reply[#reply + 1] = with_values == '1' and redis.call('HGET', values_key, key) or ''
        end
        reply[2] = sequence
        reply[7] = place
    end
end
reply[3] = next_due_ms(rules, keys, now)
return reply
