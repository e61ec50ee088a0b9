--- @include "includes/integers"
-- Returns what a replay by a plan answers without looking further: an error, or where an earlier call has stored the
-- message of this serial; else nothing. A repeated call finds its own note, whatever has changed since.
local function replayed_before(key, plan, epoch, serial)
    local noted = redis.call('HMGET', key, 'epoch', 'plan', 'import', 'replayed:' .. serial)
    if (integer(noted[1] or '') or 0) > epoch then
        return redis.error_reply('STALE epoch ' .. noted[1] .. ' owns the session')
    end
    if noted[2] ~= plan or noted[3] ~= 'done' then
        return redis.error_reply('MOVED_ON plan ' .. plan .. ' has not imported the session to its end')
    end
    return noted[4] and { 'unchanged', noted[4] }
end
