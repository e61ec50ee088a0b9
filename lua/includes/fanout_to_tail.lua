--- @include "includes/fanout_log"
--- @include "includes/fanout_due"
-- Puts ids behind all that waits for a fifo consumer: at the end of its list, or, while it has something to read in the
-- log, among the messages that are due, which a claim puts in line behind that.
local function put_at_tail(keys, consumer, ids, now)
    local reached, cursor = cursor_of(keys, consumer)
    if not cursor or cursor >= reached then
        redis.call('RPUSH', keys.ready[1], unpack(ids))
        return
    end
    local due = {}
    for _, id in ipairs(ids) do
        due[#due + 1] = due_score(now, id)
        due[#due + 1] = id
    end
    redis.call('ZADD', keys.delayed, unpack(due))
end
