--- @include "includes/fanout_new_entries"
--- @include "includes/fanout_keep"
-- Makes a message a dead letter, which keeps its reference, and its payload for as long as dead letters are kept.
local function bury(keys, options, id, attempts, stalls, lane, reason, now)
    redis.call('HSET', keys.details, id, write_entry(attempts, stalls, lane, '-'), 'e' .. id, reason)
    redis.call('ZADD', keys.dead, string.format('%d', now), id)
    keep(keys, now + options.dead_retention_ms, { id })
    redis.call('HINCRBY', keys.details, 'dead', 1)
    redis.call('HINCRBY', keys.state, 'dead', 1)
    if options.mode == 'ordered' and options.when_failed == 'halt' then
        redis.call('HSET', keys.details, 'paused', 'halted')
    end
end
