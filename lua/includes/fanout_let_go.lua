--- @include "includes/fanout_over"
--- @include "includes/fanout_release"
-- Skips at most 1,000 different ids that are not handed out: expired messages are removed, whichever consumers owe an
-- ack for them; the others lose one reference each. expires_at has the expiry of each record by id, if there is one.
local function let_go(keys, ids, expires_at, now)
    if #ids == 0 then
        return
    end
    local over, others = {}, {}
    for position, kept_until in ipairs(redis.call('ZMSCORE', keys.expiries, unpack(ids))) do
        local id = ids[position]
        local list = is_over(kept_until, expires_at[id], now) and over or others
        list[#list + 1] = id
    end
    release(keys, others, over)
end
