-- Refuse more payload keys than one call can have.
if count > PAYLOAD_KEYS_PER_CALL then
    return redis.error_reply('INVALID a call takes at most ' .. PAYLOAD_KEYS_PER_CALL .. ' payload keys')
end
