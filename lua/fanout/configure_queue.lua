#!lua flags=allow-oom
--[[
Purpose
    Set how a queue behaves towards publishers. A queue that does not exist is created. A full server runs this, too,
    since a lower limit makes room.
KEYS
    [1]  state           fields of the queue
ARGV
    [1]  when_nobody       hold or refuse: what a publish does while the queue has no member
    [2]  max_held          largest number of held messages, 1 or more
    [3]  deduplication_ms  longest time for which later deduplication ids are remembered, 1 or more
Returns
    1                    done
Errors
    INVALID  an argument breaks the rules above
Cost
    O(1); about 5 us.
]]
--- @include "includes/integers"

local max_held, deduplication_ms = integer(ARGV[2]), integer(ARGV[3])
if #KEYS ~= 1 or #ARGV ~= 3 or (ARGV[1] ~= 'hold' and ARGV[1] ~= 'refuse') then
    return redis.error_reply('INVALID a key and 3 arguments are expected, the first hold or refuse')
end
if not max_held or max_held < 1 or not deduplication_ms or deduplication_ms < 1 then
    return redis.error_reply('INVALID length of the held list or of the memory is not an integer of 1 or more')
end
redis.call(
    'HSET', KEYS[1], 'version', 1, 'when_nobody', ARGV[1], 'max_held', ARGV[2], 'deduplication_ms', ARGV[3]
)
return 1
