--- @include "includes/integers"
--- @include "includes/fanout_entries"
--- @include "includes/fanout_ids"
--- @include "includes/fanout_log"
local IDS_PER_CALL = 100
-- Largest number of comparisons of an id with an entry of a list in a call: about 10 ms.
local COMPARISONS_PER_CALL = 1000000

-- Returns the number of the log's entry that has an id, or nil. Ids in the log grow, so that halving finds it.
local function number_in_log(keys, id)
    local wanted, low = tonumber(id), 0
    local high = tonumber(redis.call('HGET', keys.state, 'logged')) or 0
    while low < high do
        local middle = math.floor((low + high) / 2)
        local entry = redis.call(
            'XRANGE', keys.log, string.format('(%d-0', middle), string.format('%d-0', high), 'COUNT', 1
        )[1]
        local text = entry and entry[2][2]
        if not entry or wanted < tonumber(string.match(text, '^%d+')) then
            high = middle
        elseif wanted > tonumber(string.match(text, '(%d+):?%d*$')) then
            low = tonumber(string.match(entry[1], '^%d+'))
        else
            return string.find(' ' .. text .. ' ', ' ' .. id .. '[ :]') and tonumber(string.match(entry[1], '^%d+'))
        end
    end
    return nil
end

-- Returns the keys of the consumers in a call, its ids, and the position of the first id's values; or nil and the
-- error, when they do not fit together or the lists are too long to be searched.
local function read_holders(keys, first_key, first_value, values_per_id)
    local misfit = redis.error_reply('INVALID keys and lanes of consumers, and 1 to 100 ids, do not fit together')
    local count = integer(ARGV[first_value - 1])
    if not count or count < 0 or #ARGV < first_value - 1 + 2 * count then
        return nil, misfit
    end
    local consumers, at = {}, first_key
    -- The held list comes before the consumers, and is searched, too.
    local entries = redis.call('LLEN', KEYS[first_key - 1])
    for number = 1, count do
        local name, lanes = ARGV[first_value - 2 + 2 * number], integer(ARGV[first_value - 1 + 2 * number])
        local lists = lanes and math.max(lanes, 1)
        if not lists or lanes < 0 or lanes > 64 or #KEYS < at + 3 + lists then
            return nil, misfit
        end
        local ready = { unpack(KEYS, at + 4, at + 3 + lists) }
        for _, key in ipairs(ready) do
            entries = entries + redis.call('LLEN', key)
        end
        local consumer = {
            name = name, lanes = lanes, leases = KEYS[at], delayed = KEYS[at + 1], dead = KEYS[at + 2],
            details = KEYS[at + 3], ready = ready, state = keys.state, log = keys.log, cursors = keys.cursors,
        }
        consumer.reached, consumer.cursor = cursor_of(consumer, name)
        consumer.cursor = consumer.cursor or consumer.reached
        consumers[number] = consumer
        at = at + 4 + lists
    end
    local ids, seen = {}, {}
    for index = first_value + 2 * count, #ARGV, values_per_id do
        local id = ARGV[index]
        if seen[id] then
            return nil, misfit
        end
        seen[id] = true
        ids[#ids + 1] = id
    end
    if
        at ~= #KEYS + 1
        or #ids < 1
        or #ids > IDS_PER_CALL
        or #ids * values_per_id ~= #ARGV - first_value + 1 - 2 * count
        or not are_ids(ids, 1)
    then
        return nil, misfit
    end
    local affordable = math.floor(COMPARISONS_PER_CALL / math.max(entries, 1))
    if affordable < 1 then
        return nil, redis.error_reply('TOO_LONG lists of ' .. entries .. ' ids cannot be looked through in one call')
    end
    return consumers, { unpack(ids, 1, math.min(#ids, affordable)) }, first_value + 2 * count
end

-- Returns the places where a consumer has an id: their kinds in order, and the list of the first place in a list. A
-- lease without a token that has run out is ended like any other. In the log the id is in the entry of this number.
local function places_of(consumer, id, now, number)
    local found, list = '', nil
    local notes = redis.call('HMGET', consumer.details, id, 'e' .. id)
    local deadline = redis.call('ZSCORE', consumer.leases, id)
    if deadline then
        local _, _, _, token = read_entry(notes[1])
        found = token == '-' and tonumber(deadline) > now and 'u' or 'l'
    end
    if redis.call('ZSCORE', consumer.delayed, id) then
        found = found .. 'd'
    end
    if redis.call('ZSCORE', consumer.dead, id) then
        found = found .. 'x'
    end
    for _, key in ipairs(consumer.ready) do
        local positions = redis.call('LPOS', key, id, 'COUNT', 2)
        if #positions > 0 then
            found = found .. string.rep('r', #positions)
            list = list or key
        end
    end
    if number and number > consumer.cursor and number <= consumer.reached then
        found = found .. 'g'
    end
    if found == '' and (notes[1] or notes[2]) then
        found = 'n'
    end
    return found, list
end
