--- @include "includes/fanout_over"
--- @include "includes/fanout_release"
-- Passes at most 1,000 different ids over that nobody gets: those whose lives are over go, whoever owes an ack for
-- them; of each of the others one reference is taken away. By id, expires_at has what the record says, if there is
-- one.
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
