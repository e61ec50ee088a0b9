#!lua flags=allow-oom
--[[
Purpose
    Give a cursor to each member that publishers put ids into the lists of although it has no maximum length: those that
    an earlier version has registered. From then on it reads the log; what is in its lists comes first. Publishers learn
    of it by the membership's number. A cursor of nobody, which an earlier version has left, is removed.
KEYS
    [1-3]  state, options, cursors
ARGV
    [1]  dry_run         1: only name the members; else 0
Returns
    {membership, *consumers}  its number, which has grown if a member got a cursor; the members that get one, in no
                         order
Errors
    INVALID  3 keys and 0 or 1 are expected
    UNKNOWN_QUEUE  there is no such queue
Cost
    O(C log C) for C members, at most 1,000; about 2 us per member.
]]
--- @include "includes/fanout_options"
--- @include "includes/fanout_next_membership"

if #KEYS ~= 3 or #ARGV ~= 1 or (ARGV[1] ~= '0' and ARGV[1] ~= '1') then
    return redis.error_reply('INVALID 3 keys and 0 or 1 are expected')
end
local fields = redis.call('HMGET', KEYS[1], 'version', 'logged', 'membership')
if not fields[1] then
    return redis.error_reply('UNKNOWN_QUEUE there is no queue of this name')
end
local found, cursors = {}, {}
local pairs_of_options = redis.call('HGETALL', KEYS[2])
for index = 1, #pairs_of_options, 2 do
    local consumer, options = pairs_of_options[index], read_options(pairs_of_options[index + 1])
    local is_eligible = options and options.mode ~= 'leaving' and options.max_length == 0
    if is_eligible and not redis.call('ZSCORE', KEYS[3], consumer) then
        local size = #cursors
        found[#found + 1] = consumer
        cursors[size + 1], cursors[size + 2] = fields[2] or '0', consumer
    end
end
local nobodys = {}
for _, consumer in ipairs(redis.call('ZRANGE', KEYS[3], 0, -1)) do
    if redis.call('HEXISTS', KEYS[2], consumer) == 0 then
        nobodys[#nobodys + 1] = consumer
    end
end
local membership = tonumber(fields[3]) or 0
if #found > 0 and ARGV[1] == '0' then
    membership = next_membership(KEYS[1])
    redis.call('ZADD', KEYS[3], unpack(cursors))
    redis.call('HSET', KEYS[1], 'membership', string.format('%d', membership))
end
if #nobodys > 0 and ARGV[1] == '0' then
    redis.call('ZREM', KEYS[3], unpack(nobodys))
end
return { membership, unpack(found) }
