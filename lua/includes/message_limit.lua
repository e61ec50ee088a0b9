-- Refuse more messages than one call takes.
if count > MESSAGES_PER_CALL then
    return redis.error_reply('INVALID a call takes at most ' .. MESSAGES_PER_CALL .. ' messages')
end
