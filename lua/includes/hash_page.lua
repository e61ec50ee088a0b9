-- Each process of a server orders a hash in its own way. To the process that answers after a restart, a failover or a
-- move of the slot, the cursor of the process before means nothing.
local function process_id()
    return string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
end

-- Returns the cursor of the next page of a hash, 0 after the last one, and names and values of this page: the first one
-- where the cursor is 0, or that of another process.
local function hash_page(key, cursor, count)
    local known, at = string.match(cursor, '^(%x+)/(%d+)$')
    local process = known and process_id()
    local page = redis.call('HSCAN', key, known and known == process and at or '0', 'COUNT', count)
    local more = page[1] ~= '0'
    return more and (process or process_id()) .. '/' .. page[1] or '0', page[2]
end
