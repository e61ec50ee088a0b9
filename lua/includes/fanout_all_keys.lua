-- Keys of lanes come last, so a call with too few keys for one lane lacks other keys, too.
if #KEYS < FIRST_READY then
    return redis.error_reply('INVALID ' .. FIRST_READY .. ' keys or more are expected, those of the lanes last')
end
