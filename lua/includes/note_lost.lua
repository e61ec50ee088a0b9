-- Counts messages that were removed without an acknowledgement, and records the newest of them.
local function note_lost(key, counter, lost, newest)
    if lost > 0 then
        redis.call('HINCRBY', key, counter, lost)
        redis.call('HSET', key, 'last_lost_sequence', string.format('%.0f', newest))
    end
end
