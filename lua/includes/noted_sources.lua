-- The sources of a copy of a session, in either layout. Returns early if one is wrong.
-- The batch after the last one that was saved elsewhere is recorded as begun, without calls: it will be saved, and
-- earlier batches count as saved.
local noted, forgotten = {}, {}
for index = 1, sources do
    local at = FIRST_VALUE + 2 * (index - 1)
    local offset = integer(ARGV[at + 1])
    if ARGV[at] == '' or (ARGV[at + 1] ~= '' and not (offset and offset >= 0)) then
        return redis.error_reply('INVALID source ' .. index .. ' has no name, or its offset is not an integer')
    end
    if offset then
        noted[#noted + 1] = 'source:' .. ARGV[at]
        noted[#noted + 1] = string.format('%d', offset + 1)
    else
        forgotten[#forgotten + 1] = 'source:' .. ARGV[at]
    end
end
