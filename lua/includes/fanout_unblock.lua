--- @include "includes/fanout_entries"
-- Ends the wait of a lane for the retry of its head when that message is removed. Call this before the notes on the
-- removed ids are deleted.
local function unblock(details_key, lane, ids)
    if #ids == 0 or not string.find(redis.call('HGET', details_key, 'l' .. lane) or '', '^blocked ') then
        return
    end
    for _, entry in ipairs(redis.call('HMGET', details_key, unpack(ids))) do
        local attempts = read_entry(entry)
        if attempts > 0 then
            redis.call('HDEL', details_key, 'l' .. lane)
            return
        end
    end
end
