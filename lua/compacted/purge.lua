#!lua flags=allow-oom
--[[
Purpose
    Remove messages of a queue, the oldest first. Its sequences and its cursor stay as they are.
KEYS
    [1-6]  state, order, times, values, tombstones, in_flight
ARGV
    [1]  what            up_to: every message; acked: those that are acknowledged
    [2]  up_to_sequence  last one to remove, 0 or more: the one that inspect returns, for all present messages
    [3]  after_sequence  only messages after this one, 0 or more: from the call before
    [4]  limit           messages to look at, 1 to 500
    [5]  dry_run         1: count and remove nothing; else 0
Returns
    {deleted, unacked, tombstones, bytes, more, next_after_sequence}  messages removed, or that would be; how many of
                         them were not acknowledged; how many were tombstones; bytes of their keys and values; 1 when
                         messages after next_after_sequence are left to look at
Errors
    INVALID  an argument breaks the rules above
Cost
    O(L log N) for a limit of L and N keys; about 4 us per message.
]]
--- @include "includes/integers"
--- @include "includes/is_acked"
--- @include "includes/note_lost"
--- @include "includes/note_removed"
--- @include "includes/remove_rows"

local LIMIT = 500

local state_key, order_key, times_key = KEYS[1], KEYS[2], KEYS[3]
local values_key, tombstones_key, in_flight_key = KEYS[4], KEYS[5], KEYS[6]
local what, up_to, after, limit, dry_run = ARGV[1], integer(ARGV[2]), integer(ARGV[3]), integer(ARGV[4]), ARGV[5]
if #KEYS ~= 6 or #ARGV ~= 5 or not up_to or up_to < 0 or not after or after < 0 then
    return redis.error_reply('INVALID 6 keys, what to purge and two sequences of 0 or more are expected')
end
if (what ~= 'up_to' and what ~= 'acked') or not limit or limit < 1 or limit > LIMIT
    or (dry_run ~= '0' and dry_run ~= '1')
then
    return redis.error_reply('INVALID up_to or acked, a limit from 1 to ' .. LIMIT .. ' and 0 or 1 are expected')
end

local fields = redis.call('HMGET', state_key, 'acked', 'sent', 'bytes', 'last_lost_sequence', 'last_removed_sequence')
local acked, sent = tonumber(fields[1] or '0'), tonumber(fields[2] or '0')
if what == 'acked' then
    up_to = math.min(up_to, sent)
end
local rows = redis.call(
    'ZRANGE', order_key, string.format('(%.0f', after), string.format('%.0f', up_to), 'BYSCORE',
    'LIMIT', '0', limit, 'WITHSCORES'
)
local going, bytes, unacked, last_lost, last_removed = {}, 0, 0, tonumber(fields[4] or '0'), 0
for place = 1, #rows, 2 do
    local key, sequence = rows[place], rows[place + 1] + 0
    local acknowledged = is_acked(in_flight_key, sequence, acked, sent)
    if acknowledged or what == 'up_to' then
        going[#going + 1], last_removed = key, sequence
        bytes = bytes + #key + redis.call('HSTRLEN', values_key, key)
        if not acknowledged then
            unacked, last_lost = unacked + 1, math.max(last_lost, sequence)
        end
    end
    after = sequence
end
local tombstones = 0
if #going > 0 then
    for _, score in ipairs(redis.call('ZMSCORE', tombstones_key, unpack(going))) do
        tombstones = tombstones + (score and 1 or 0)
    end
end
if #going > 0 and dry_run == '0' then
    remove_rows(order_key, times_key, values_key, tombstones_key, going)
    redis.call('HSET', state_key, 'bytes', string.format('%.0f', tonumber(fields[3] or '0') - bytes))
    redis.call('HINCRBY', state_key, 'purged', #going)
    note_lost(state_key, 'purged_unacked', unacked, last_lost)
    note_removed(state_key, fields[5], last_removed)
end
return { #going, unacked, tombstones, bytes, #rows == 2 * limit and 1 or 0, after }
