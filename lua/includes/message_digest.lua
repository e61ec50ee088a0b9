-- The digest is equal for messages of equal topic, time and payload.
local function message_digest(facts)
    return redis.sha1hex(facts.topic .. '\n' .. string.format('%d', facts.time_ms) .. '\n' .. facts.payload)
end
