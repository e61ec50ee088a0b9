--- @include "includes/fanout_read_log"
--- @include "includes/fanout_cursor"
local PULLED_PER_CALL = 1000

-- Puts ids of the log into a member's lists, as many as are wanted and a call may move, or up to 99 more. Returns how
-- many are still in the log.
local function pull(keys, consumer, wanted)
    local reached, before = cursor_of(keys, consumer)
    if not before or before >= reached then
        return 0
    end
    local lists, cursor = read_log(keys, before, reached, math.min(wanted, PULLED_PER_CALL), #keys.ready)
    for lane, list in ipairs(lists) do
        if #list > 0 then
            redis.call('RPUSH', keys.ready[lane], unpack(list))
        end
    end
    move_cursor(keys, consumer, before, cursor)
    return reached - cursor
end
