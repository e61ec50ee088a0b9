-- Records in a session with a mirror what the other store does not know yet: serials as text such as 17-20,25, '-' for
-- a change of no message, or '*' for anything. The text is bounded; a longer one becomes '*'. A packed session keeps
-- empty texts where there is no change.
local OUTBOX_BYTES = 4000

local function appended(outbox, change)
    -- Saves follow each other, so the last run of serials grows.
    local tail = string.sub(outbox, -36)
    local at, _, run_first, run_last = string.find(tail, '(%d+)%-?(%d*)$')
    local next_first, rest = string.match(change, '^(%d+)%-?(.*)$')
    if run_last == '' then
        run_last = run_first
    end
    if next_first - run_last ~= 1 then
        return outbox .. ',' .. change
    end
    if string.sub(change, #next_first + 1, #next_first + 1) ~= '-' then
        rest = change
    end
    return string.sub(outbox, 1, #outbox - #tail + at - 1) .. run_first .. '-' .. rest
end

local function note_change(key, change)
    local noted = redis.call('HMGET', key, 'outbox', 'outbox_ms')
    local outbox = noted[1] ~= '' and noted[1]
    if outbox == '*' or (outbox and change == '-') then
        change = outbox
    elseif outbox and outbox ~= '-' and change ~= '*' then
        change = appended(outbox, change)
    end
    if #change > OUTBOX_BYTES then
        change = '*'
    end
    local since_ms = noted[2]
    if not since_ms or since_ms == '' then
        local instant = redis.call('TIME')
        since_ms = string.format('%.0f', instant[1] * 1000 + math.floor(instant[2] / 1000))
    end
    redis.call('HSET', key, 'outbox', change, 'outbox_ms', since_ms)
    redis.call('HINCRBY', key, 'outbox_version', '1')
end
