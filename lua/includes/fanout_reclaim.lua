--- @include "includes/fanout_bury"
--- @include "includes/fanout_entries"
--- @include "includes/fanout_new_entries"
--- @include "includes/fanout_ids"
-- Number of leases that are sorted, if there are more than a call moves; beyond it, pages are in order of deadlines.
local OVERDUE_READ = 5000

-- Puts messages whose lease has run out back to the head of their list, the oldest in front, or after too many stalls
-- to the dead letters. It begins with the newest, so nothing may be handed out until there are no more. Returns their
-- ids, the number of dead letters, whether there are more, members that are not ids, and the ids of dead letters that
-- had expired and are kept. The caller removes all these leases, with its last command on that key. A caller that only
-- counts skips the leases of earlier pages, in the order in which they are read.
local function reclaim(keys, options, max_stalls, limit, now, behind)
    local instants = string.format('%d', now)
    local first = behind or 0
    local overdue = redis.call('ZREVRANGEBYSCORE', keys.leases, instants, '-inf', 'LIMIT', first, limit + 1)
    local is_more = #overdue > limit
    if is_more and behind then
        overdue[#overdue] = nil
    elseif is_more then
        overdue = redis.call('ZREVRANGEBYSCORE', keys.leases, instants, '-inf', 'LIMIT', 0, OVERDUE_READ)
    end
    local ids, foreign = {}, {}
    for _, id in ipairs(overdue) do
        if are_ids({ id }, 1) then
            ids[#ids + 1] = id
        elseif #foreign < limit then
            foreign[#foreign + 1] = id
        end
    end
    if #ids == 0 then
        return ids, 0, is_more, foreign, {}, {}
    end
    table.sort(ids, function(one, other)
        return tonumber(one) > tonumber(other)
    end)
    ids = { unpack(ids, 1, math.min(#ids, limit)) }
    local dead, again, revived = 0, {}, {}
    for position, entry in ipairs(redis.call('HMGET', keys.details, unpack(ids))) do
        local id = ids[position]
        local attempts, stalls, lane = read_entry(entry)
        stalls = stalls + 1
        if lane > 0 then
            redis.call('HDEL', keys.details, 'l' .. lane)
        end
        if stalls > max_stalls then
            local ends = redis.call('ZSCORE', keys.expiries, id)
            if ends and tonumber(ends) <= now then
                revived[#revived + 1] = id
            end
            bury(keys, options, id, attempts, stalls, lane, 'stalled', now)
            dead = dead + 1
        else
            redis.call('HSET', keys.details, id, write_entry(attempts, stalls, lane, '-'))
            redis.call('LPUSH', keys.ready[math.max(lane, 1)], id)
            again[#again + 1] = id
        end
    end
    redis.call('HINCRBY', keys.details, 'stalled', #ids)
    return ids, dead, is_more, foreign, again, revived
end
