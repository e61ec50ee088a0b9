-- The beginning of set_owner, in either layout: what Redis is told. Returns early if an argument is wrong.
local owner, mirror = ARGV[2], ARGV[3]
local epoch = integer(ARGV[1])
if #ARGV ~= 3 or not epoch or epoch < 0 then
    return redis.error_reply('INVALID an epoch of 0 or more, an owner and a mark of the mirror are expected')
end
if owner ~= 'redis' and owner ~= 'postgres' and owner ~= 'fenced' then
    return redis.error_reply('INVALID owner is neither redis nor postgres nor fenced')
end
if mirror ~= '0' and mirror ~= '1' then
    return redis.error_reply('INVALID the mark of the mirror is neither 0 nor 1')
end
