-- Compares what set_owner is told with what the session knows: owner, epoch and mirror come first in fields. Returns
-- early if the session knows more, or all of it.
local known = integer(fields[2] or '') or -1
if known > epoch or (known == epoch and fields[1] ~= owner) then
    return redis.error_reply('STALE epoch ' .. (fields[2] or '') .. ' owns the session: ask for its owner')
end
local was_mirrored = fields[3]
if known == epoch and not (owner == 'redis' and mirror == '0' and was_mirrored) then
    return 'unchanged'
end
