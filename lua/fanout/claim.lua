#!lua flags=allow-oom
--[[
Purpose
    Take the next messages of a consumer under a lease, from its lists and then from the log, and count an attempt of
    each. Before that, leases that have run out are ended, and messages that are due, for a retry or because they were
    published for later, are put in line, at most 100 of each; while more leases have run out, nothing is handed out. A
    message that has expired before its first attempt, or whose payload is gone, is skipped, and removed when nobody
    else works on it; a message that is handed out is kept at least until the deadline. A message whose lease ran out
    twice is handed out alone, since it may crash its workers. An ordered consumer gets at most one message per lane,
    and none from a lane whose last one is not done.
KEYS
    [1-13]  state, options, consumers, messages, references, expiries, log, cursors, leases, delayed, dead, details,
            wakes
    [14+] ready          list of ids per lane
ARGV
    [1]  consumer        its name
    [2]  token           proves the lease: 1 to 64 letters, digits, hyphens and underscores, a letter or digit first
    [3]  lease_ms        how long it lasts, 1 or more
    [4]  count           most messages, 1 to 1,000; fewer when they are longer than 1,000,000 bytes together
    [5]  max_stalls      a message whose lease ran out more often becomes a dead letter
    [6]  now_ms          instant; empty: the server's time
Returns
    {deadline_ms, wait_until_ms, more, skipped, stalled, dead, logged, *messages(id, attempt, stalls, message)}
                         deadline; instant at which something becomes due if nothing is published, 0 for none; 1 when
                         there may be more to claim at once; messages skipped; leases ended; dead letters among
                         those; number of the log's last entry: an entry behind it is more to claim; then four per
                         message, the last as in the hash. A paused or adopting consumer gets none
Errors
    INVALID  an argument breaks the rules above
    UNKNOWN_QUEUE, UNKNOWN_CONSUMER  there is no such queue, or no such consumer is registered
    VERSION  the consumer has another number of lanes
Cost
    O(C log L) for C messages and L leases, and at most 1,200 messages moved and 1,000 skipped; about 90 us for one
    message, 8 us per further one, on two busy cores.
]]
--- @include "includes/instant"
--- @include "includes/fanout_consumer"
--- @include "includes/fanout_lanes"
--- @include "includes/fanout_entries"
--- @include "includes/fanout_new_entries"
--- @include "includes/fanout_tokens"
--- @include "includes/fanout_let_go"
--- @include "includes/fanout_reclaim"
--- @include "includes/fanout_line_up"
--- @include "includes/fanout_wake"
--- @include "includes/fanout_pull"

local MOVED_PER_CALL = 100
local SKIPPED_PER_CALL = 1000
local CLAIMED_PER_CALL = 1000
local BYTES_PER_CALL = 1000000
local SUSPECT_STALLS = 2

local FIRST_READY = 14
--- @include "includes/fanout_all_keys"
--- @keys

local consumer, token = ARGV[1], ARGV[2]
local lease_ms, count, max_stalls = integer(ARGV[3]), integer(ARGV[4]), integer(ARGV[5])
if #ARGV ~= 6 or not is_token(token) then
    return redis.error_reply('INVALID 6 arguments are expected, and a token of 1 to 64 letters, digits, - and _')
end
if not lease_ms or lease_ms < 1 or not max_stalls or max_stalls < 0 then
    return redis.error_reply('INVALID lease or number of stalls is not an integer of 1, or 0, or more')
end
if not count or count < 1 or count > CLAIMED_PER_CALL then
    return redis.error_reply('INVALID count is not an integer from 1 to ' .. CLAIMED_PER_CALL)
end
local now = instant(ARGV[6])
if not now then
    return redis.error_reply('INVALID now is neither empty nor an integer of 0 or more')
end
--- @include "includes/fanout_own_options"

local deadline = string.format('%d', now + lease_ms)
local reply = { deadline, 0, 0, 0, 0, 0, 0 }
redis.call('ZADD', keys.consumers, 'XX', string.format('%d', now), consumer)
local notes = redis.call('HMGET', keys.details, 'paused', 'adopting', 'next_lane', 'claimed')
local of_queue = redis.call('HMGET', keys.state, 'paused', 'logged')
local logged = tonumber(of_queue[2] or nil) or 0
reply[7] = logged
if notes[1] or notes[2] or of_queue[1] then
    redis.call('UNLINK', keys.wakes)
    return reply
end

-- Each key is read and added to first, and removed from once, at the end: while a cluster moves a slot, a script must
-- not touch a key again that it has emptied.
-- Returns the first score of a set that is to come, and whether another one has come.
local function look_ahead(key)
    local first = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]
    if not first or tonumber(first) >= now + 1 then
        return first, false
    end
    local later = string.format('%d', now + 1)
    return redis.call('ZRANGEBYSCORE', key, later, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2], true
end
local first_deadline, has_overdue = look_ahead(keys.leases)
local first_due, has_due = look_ahead(keys.delayed)

local stalled, dead, is_more, foreign = {}, 0, false, {}
if has_overdue then
    stalled, dead, is_more, foreign = reclaim(keys, options, max_stalls, MOVED_PER_CALL, now)
end
reply[5], reply[6] = #stalled, dead
if is_more then
    count = 0
end
-- The consumer may have been halted just now.
local is_halted = dead > 0 and options.mode == 'ordered' and options.when_failed == 'halt'

-- A message that is due comes after those that wait, also in the log.
local due = has_due and read_due(keys.delayed, now, MOVED_PER_CALL) or {}
if #due > 0 and pull(keys, consumer, PULLED_PER_CALL) > 0 then
    due, is_more = {}, true
end
line_up(keys, options, due)
local first_cursor = tonumber(redis.call('ZSCORE', keys.cursors, consumer) or nil) or logged
local cursor = first_cursor

local skipped, life_ends, taken, is_leased = {}, {}, 0, {}
local claimed = tonumber(notes[4] or nil) or 0
local bytes, is_full = 0, false
-- Returns whether the reply has room for one more message; a larger message is returned alone.
local function fits(id)
    if count > 1 and not is_full then
        local before = bytes
        bytes = bytes + redis.call('HSTRLEN', keys.messages, id)
        is_full = before > 0 and bytes > BYTES_PER_CALL
    end
    return not is_full
end

local suspect_stalls = math.max(1, math.min(SUSPECT_STALLS, max_stalls))
local is_alone = false
-- Leases the ids that have a payload and have not expired, and skips the others, up to a message that must be handed
-- out alone, now or next time. Returns how many were leased, and how many were looked at.
local function lease(ids, lane)
    local payloads = redis.call('HMGET', keys.messages, unpack(ids))
    local entries = redis.call('HMGET', keys.details, unpack(ids))
    local noted, leased, short_lived, looked_at = {}, {}, {}, 0
    for position, id in ipairs(ids) do
        if is_alone then
            break
        end
        looked_at = position
        local message, entry = payloads[position], entries[position]
        local expires_at = are_ids({ id }, 1) and message and string.match(message, '^%d+:(%d+):') or '0'
        if not message or (not entry and tonumber(expires_at) <= now) then
            skipped[#skipped + 1] = id
            life_ends[id] = message and expires_at
        else
            local attempts, stalls = read_entry(entry)
            is_alone = stalls >= suspect_stalls
            if is_alone and taken + #noted > 0 then
                looked_at = position - 1
                break
            end
            noted[#noted + 1] = id
            noted[#noted + 1] = write_entry(attempts + 1, stalls, lane, token)
            leased[#leased + 1] = deadline
            leased[#leased + 1] = id
            is_leased[id] = true
            if tonumber(expires_at) < now + lease_ms then
                short_lived[#short_lived + 1] = id
            end
            local size = #reply
            reply[size + 1], reply[size + 2], reply[size + 3], reply[size + 4] = id, attempts + 1, stalls, message
        end
    end
    if #noted > 0 then
        claimed = claimed + #noted / 2
        noted[#noted + 1], noted[#noted + 2] = 'claimed', string.format('%d', claimed)
        redis.call('HSET', keys.details, unpack(noted))
        redis.call('ZADD', keys.leases, unpack(leased))
        if #short_lived > 0 then
            keep(keys, now + lease_ms, short_lived)
        end
    end
    return #leased / 2, looked_at
end

local waiting = 0
local blocked_until
if options.mode == 'fifo' then
    local key = keys.ready[1]
    local length, read = redis.call('LLEN', key), 0
    local pulled, used = {}, 0
    -- Returns the ids next in line, at most so many: those of the list, then those of the log.
    local function next_ids(most)
        if read < length then
            return redis.call('LRANGE', key, read, read + most - 1)
        end
        if used == #pulled and cursor < logged then
            local lists
            lists, cursor = read_log(keys, cursor, logged, most, 1)
            pulled, used = lists[1], 0
        end
        return { unpack(pulled, used + 1, math.min(used + most, #pulled)) }
    end
    while taken < count and #skipped < SKIPPED_PER_CALL and not is_full and not is_alone do
        local ids = {}
        -- Half of what unpack() can take: two values are written per id.
        for _, id in ipairs(next_ids(math.min(count - taken, 500, SKIPPED_PER_CALL - #skipped))) do
            if not fits(id) then
                break
            end
            ids[#ids + 1] = id
        end
        if #ids == 0 then
            break
        end
        local leased, looked_at = lease(ids, 0)
        if read < length then
            read = read + looked_at
        else
            used = used + looked_at
        end
        taken = taken + leased
    end
    if used < #pulled then
        redis.call('RPUSH', key, unpack(pulled, used + 1))
    end
    if read > 0 then
        redis.call('LTRIM', key, read, -1)
    end
    waiting = length - read + #pulled - used + logged - cursor
elseif not is_halted then
    local fields = {}
    for lane = 1, options.lanes do
        fields[lane] = 'l' .. lane
    end
    local states = redis.call('HMGET', keys.details, unpack(fields))
    local free, is_short, in_log = {}, false, logged - cursor
    for lane = 1, options.lanes do
        local kind, value = string.match(states[lane] or '', '^(%l+) (%d+)$')
        -- A lane's note without a lease would block the lane for ever.
        free[lane] = not kind
            or kind == 'blocked' and tonumber(value) <= now
            or kind == 'leased' and not redis.call('ZSCORE', keys.leases, value)
        if kind == 'blocked' and not free[lane] and redis.call('EXISTS', keys.ready[lane]) == 1 then
            blocked_until = math.min(tonumber(value), blocked_until or tonumber(value))
        end
        is_short = is_short or cursor < logged and free[lane] and redis.call('EXISTS', keys.ready[lane]) == 0
    end
    if is_short then
        -- The log may have something for a lane with nothing in line, behind messages of other lanes.
        in_log = pull(keys, consumer, PULLED_PER_CALL)
    end
    -- Each claim begins after the lane where the last one ended, so that no lane waits for ever.
    local first = (tonumber(notes[3]) or 1) - 1
    local last_lane
    for step = 0, options.lanes - 1 do
        local lane = (first + step) % options.lanes + 1
        local key = keys.ready[lane]
        if free[lane] then
            local length, read = redis.call('LLEN', key), 0
            local id
            while not id and read < length and taken < count and #skipped < SKIPPED_PER_CALL and not is_alone do
                local next_id = redis.call('LINDEX', key, read)
                if not fits(next_id) then
                    break
                end
                local leased, looked_at = lease({ next_id }, lane)
                read = read + looked_at
                if leased == 1 then
                    id = next_id
                    taken = taken + 1
                    last_lane = lane
                end
            end
            if read > 0 then
                redis.call('LTRIM', key, read, -1)
            end
            if id then
                redis.call('HSET', keys.details, 'l' .. lane, 'leased ' .. id)
            elseif states[lane] then
                redis.call('HDEL', keys.details, 'l' .. lane)
            end
            if not id and (read < length or in_log > 0) then
                waiting = waiting + 1
            end
        end
    end
    if last_lane and options.lanes > 1 then
        redis.call('HSET', keys.details, 'next_lane', last_lane % options.lanes + 1)
    end
end

if cursor ~= first_cursor then
    move_cursor(keys, consumer, first_cursor, cursor)
end
if #skipped > 0 then
    redis.call('HDEL', keys.details, unpack(skipped))
    redis.call('HINCRBY', keys.details, 'expired', #skipped)
    let_go(keys, skipped, life_ends, now)
end
reply[4] = #skipped

local ended = foreign
for _, id in ipairs(stalled) do
    if not is_leased[id] then
        ended[#ended + 1] = id
    end
end
if #ended > 0 then
    redis.call('ZREM', keys.leases, unpack(ended))
end

local more = waiting > 0 or is_more or #due == MOVED_PER_CALL
if is_halted then
    more = false
end
if more then
    -- Another process of this consumer may wait for it.
    wake(keys.wakes)
    reply[3] = 1
else
    redis.call('UNLINK', keys.wakes)
end
local wait_until = blocked_until
for _, at in ipairs({ first_due or false, first_deadline or false, taken > 0 and deadline }) do
    if at then
        wait_until = math.min(tonumber(at), wait_until or tonumber(at))
    end
end
reply[2] = wait_until or 0
return reply
