#!lua flags=allow-oom
--[[
Purpose
    Do for a consumer without claims what a claim does first: end leases that have run out, and put messages in line
    that are due, for a retry or because they were published for later. Then remove ids from its lists whose messages
    are gone, page by page, in the middle too, where they take the room of new messages for a bounded consumer; and move
    its cursor over those that come next in the log.
KEYS
    [1-12]  state, options, messages, references, expiries, log, cursors, leases, delayed, dead, details, wakes
    [13+] ready          list of ids per lane
ARGV
    [1]  consumer        its name
    [2]  max_stalls      a message whose lease ran out more often becomes a dead letter
    [3]  limit           most leases, most messages that are due, and most ids looked at, 1 to 1,000
    [4]  lane            whose list to go on with, from 1; the log comes after the last one
    [5]  offset          0 to begin with that list; else the offset of the last reply
    [6]  now_ms          instant; empty: the server's time
    [7]  part            all; leases: only leases and due messages; lists: only ids in lists, expired ones too
    [8]  behind          leases and due messages to skip, for a caller that only counts; empty: none
    [9+] ids             lists: expired messages that stay as dead letters
Returns
    {requeued, dead, skipped, more, lane, offset, here, unseen, *revived}  messages that are next in line again;
                         dead letters; ids without a message that were removed; 1 when there may be more to do; where
                         to continue; ids removed before there; of the messages in line again, those that are gone or
                         expired; ids of dead letters that had expired
Errors
    INVALID  an argument breaks the rules above
    UNKNOWN_QUEUE, UNKNOWN_CONSUMER  there is no such queue, or no such consumer is registered
    VERSION  the consumer has another number of lanes
Cost
    O(M log L + E) for M messages, L leases, and E entries between removed ids and the nearer end of their list; about
    10 us per message, 1 us per id looked at. At most 1,000 of each kind, and 250,000 entries; ids farther inside stay
    until others are gone.
]]
--- @include "includes/instant"
--- @include "includes/fanout_consumer"
--- @include "includes/fanout_lanes"
--- @include "includes/fanout_reclaim"
--- @include "includes/fanout_line_up"
--- @include "includes/fanout_unblock"
--- @include "includes/fanout_wake"
--- @include "includes/fanout_pull"

local PER_CALL = 1000
local REACH = 250000
local FIRST_ID = 9

local FIRST_READY = 13
--- @include "includes/fanout_all_keys"
--- @keys
local max_stalls, limit, now = integer(ARGV[2]), integer(ARGV[3]), instant(ARGV[6])
local first_lane, offset = integer(ARGV[4]), integer(ARGV[5])
local part, behind = ARGV[7], ARGV[8] ~= '' and integer(ARGV[8]) or nil
if #ARGV < FIRST_ID - 1 or not max_stalls or max_stalls < 0 or not now then
    return redis.error_reply('INVALID 8 arguments are expected, number of stalls and now integers of 0 or more')
end
if (part ~= 'all' and part ~= 'leases' and part ~= 'lists') or (ARGV[8] ~= '' and (not behind or behind < 0)) then
    return redis.error_reply('INVALID part is all, leases or lists, and what is behind an integer of 0 or more')
end
if not limit or limit < 1 or limit > PER_CALL then
    return redis.error_reply('INVALID limit is not an integer from 1 to ' .. PER_CALL)
end
if not first_lane or first_lane < 1 or not offset or offset < 0 then
    return redis.error_reply('INVALID lane or offset is not an integer of 1, or 0, or more')
end
--- @include "includes/fanout_own_options"

-- Returns the ids that have no message any more, or an expired one.
local lives_on = {}
for index = FIRST_ID, #ARGV do
    lives_on[ARGV[index]] = true
end
local function gone_of(ids, is_over_too)
    local found = {}
    if #ids == 0 then
        return found
    end
    local ends = is_over_too and redis.call('ZMSCORE', keys.expiries, unpack(ids)) or {}
    for position, count in ipairs(redis.call('HMGET', keys.references, unpack(ids))) do
        local is_over = ends[position] and tonumber(ends[position]) <= now and not lives_on[ids[position]]
        found[position] = (not count or is_over) and true or false
    end
    return found
end

local stalled, dead, is_more, foreign, again, revived, due = {}, 0, false, {}, {}, {}, {}
local is_pulling = false
if part ~= 'lists' then
    due = read_due(keys.delayed, now, limit, behind)
    -- A message that is due comes after those that wait, also in the log.
    if #due > 0 and pull(keys, ARGV[1], PER_CALL) > 0 and not behind then
        due, is_pulling = {}, true
    end
    stalled, dead, is_more, foreign, again, revived = reclaim(keys, options, max_stalls, limit, now, behind)
end
local unseen = 0
for _, ids in ipairs({ again, due }) do
    for _, is_gone in ipairs(gone_of(ids, true)) do
        unseen = unseen + (is_gone and 1 or 0)
    end
end
if #stalled > 0 then
    redis.call('ZREM', keys.leases, unpack(stalled))
end
if #foreign > 0 then
    redis.call('ZREM', keys.leases, unpack(foreign))
end
local requeued = #stalled - dead
line_up(keys, options, due)

local skipped, left, lane, here = 0, limit, first_lane, 0
if part == 'leases' then
    lane = #keys.ready + 2
end
while lane <= #keys.ready and left > 0 do
    local key = keys.ready[lane]
    local ids = redis.call('LRANGE', key, offset, offset + left - 1)
    local gone = {}
    local length = redis.call('LLEN', key)
    local from_tail = length - offset
    if #ids > 0 and math.min(offset + #ids, from_tail) <= REACH then
        for position, is_gone in ipairs(gone_of(ids, part == 'lists')) do
            if is_gone then
                gone[#gone + 1] = ids[position]
                -- Marked by position and removed together, since each search would walk through the list.
                redis.call('LSET', key, offset + position - 1, '')
            end
        end
    end
    if #gone > 0 then
        unblock(keys.details, lane, gone)
        redis.call('HDEL', keys.details, unpack(gone))
        redis.call('LREM', key, offset + #ids <= from_tail and #gone or -#gone, '')
        skipped = skipped + #gone
    end
    left = left - #ids
    if left > 0 then
        lane, offset = lane + 1, 0
    else
        offset, here = offset + #ids - #gone, #gone
    end
end
if lane == #keys.ready + 1 and left > 0 then
    local reached, cursor = cursor_of(keys, ARGV[1])
    -- A caller that only counts finds the cursor where it was, and its offset is what it has passed.
    local from = (cursor or reached) + offset
    local entries = redis.call(
        'XRANGE', keys.log, string.format('(%d-0', from), string.format('%d-0', reached), 'COUNT', ENTRIES_PER_READ
    )
    local to, lists, is_end = from, {}, false
    -- Where something is due, all has been pulled; a caller that only counts still finds it in the log.
    local is_pulled = behind and redis.call('ZCOUNT', keys.delayed, '-inf', '(' .. string.format('%d', now + 1)) > 0
    for _, entry in ipairs(entries) do
        local ids, lanes, removed = {}, {}, 0
        for id, order_hash in string.gmatch(entry[2][2], '(%d+):?(%d*)') do
            ids[#ids + 1] = id
            lanes[#ids] = (tonumber(order_hash) or 0) % options.lanes + 1
        end
        local gone = gone_of(ids, part == 'lists')
        for position in ipairs(ids) do
            removed = removed + (gone[position] and 1 or 0)
        end
        -- What comes behind a publish whose messages are all there stays in the log.
        is_end = removed == 0 and not is_pulled
        if is_end or left <= 0 then
            break
        end
        for position, id in ipairs(ids) do
            if not gone[position] then
                local key = keys.ready[lanes[position]]
                lists[key] = lists[key] or {}
                table.insert(lists[key], id)
            end
        end
        to, skipped, left = tonumber(string.match(entry[1], '^%d+')), skipped + removed, left - #ids
    end
    for key, ids in pairs(lists) do
        redis.call('RPUSH', key, unpack(ids))
    end
    if to > from then
        move_cursor(keys, ARGV[1], from, to)
        offset, here = 0, to - cursor
    end
    if is_end or #entries < ENTRIES_PER_READ and left > 0 then
        lane = lane + 1
    end
end
if skipped > 0 then
    redis.call('HINCRBY', keys.details, 'expired', skipped)
end
if requeued > 0 or skipped > 0 or #due > 0 then
    wake(keys.wakes)
end
local more = is_more or is_pulling or #due == limit or lane <= #keys.ready + 1
return {
    requeued, dead, skipped, more and 1 or 0, math.min(lane, #keys.ready + 1), offset, here, unseen, unpack(revived),
}
