-- Returns ids that are due, the earliest first. A caller that only counts skips those of earlier pages.
local function read_due(delayed_key, now, limit, behind)
    local below = '(' .. string.format('%d', now + 1)
    return redis.call('ZRANGEBYSCORE', delayed_key, '-inf', below, 'LIMIT', behind or 0, limit)
end

-- Puts at most 1,000 of these ids in line, each in the list of its lane.
local function line_up(keys, options, ids)
    if #ids == 0 then
        return
    end
    local lists = {}
    for _, id in ipairs(ids) do
        local message = options.lanes > 1 and redis.call('HGET', keys.messages, id)
        local order_hash = string.match(message or '', '^%d+:%d+:(%d+):')
        local lane = tonumber(order_hash or 0) % options.lanes + 1
        lists[lane] = lists[lane] or {}
        table.insert(lists[lane], id)
    end
    for lane, list in pairs(lists) do
        redis.call('RPUSH', keys.ready[lane], unpack(list))
    end
    redis.call('ZREM', keys.delayed, unpack(ids))
end
