-- Those of the lanes come last: a call with fewer keys than one of them lacks others, too.
if #KEYS < FIRST_READY then
    return redis.error_reply('INVALID ' .. FIRST_READY .. ' keys or more are expected, those of the lanes last')
end
