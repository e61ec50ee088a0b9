-- Refuse more messages than one call can have.
if count > MESSAGES_PER_CALL then
    return redis.error_reply('INVALID a call takes at most ' .. MESSAGES_PER_CALL .. ' messages')
end
