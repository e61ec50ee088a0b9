-- Messages that went without a newer value of their keys: the newest of them is named, so that a rewind to where one of
-- them was can say that it is gone.
local function note_removed(key, known, newest)
    if newest > tonumber(known or '0') then
        redis.call('HSET', key, 'last_removed_sequence', string.format('%.0f', newest))
    end
end
