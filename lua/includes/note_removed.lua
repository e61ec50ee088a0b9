-- Records the newest of the messages that were removed without a newer value of their key, so that a rewind to such a
-- place can tell that it is gone.
local function note_removed(key, known, newest)
    if newest > tonumber(known or '0') then
        redis.call('HSET', key, 'last_removed_sequence', string.format('%.0f', newest))
    end
end
