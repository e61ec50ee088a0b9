-- The beginning of trim_outbox, in either layout: returns early if there is nothing to trim.
local session_key = KEYS[1]
local epoch, outbox_version, read_ms = integer(ARGV[1]), integer(ARGV[2]), integer(ARGV[3])
if #KEYS ~= 1 or #ARGV ~= 3 or not epoch or epoch < 0 or not outbox_version or outbox_version < 0
    or not read_ms or read_ms < 0
then
    return redis.error_reply('INVALID 1 key, an epoch, a version and an instant, integers of 0 or more, are expected')
end

local fields = redis.call('HMGET', session_key, 'epoch', 'outbox_version', 'outbox_ms')
if fields[1] ~= ARGV[1] then
    return redis.error_reply('STALE epoch ' .. (fields[1] or 'none') .. ' owns the session: ask for its owner')
end
if fields[2] ~= ARGV[2] then
    -- A client with constant changes is never quite up to date, and yet not far behind.
    if fields[3] and (integer(fields[3]) or read_ms) < read_ms then
        redis.call('HSET', session_key, 'outbox_ms', ARGV[3])
    end
    return 0
end
