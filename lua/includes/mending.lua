-- Reads the caller's rules for repairing records without expiry, and returns an error if they are wrong.
local PAYLOAD_KEYS_PER_CALL = 100
local BYTES_PER_CALL = 1048576

local default_ttl_ms, grace_ms, said_ms = integer(ARGV[1]), integer(ARGV[2]), integer(ARGV[3])
local count = #KEYS - FIRST_PAYLOAD + 1
if count < 1 or count > PAYLOAD_KEYS_PER_CALL or #ARGV ~= 3 then
    return redis.error_reply('INVALID 1 to 100 payload keys and 3 arguments are expected')
end
if not default_ttl_ms or default_ttl_ms < 1 or not grace_ms or grace_ms < 1 or not said_ms or said_ms < 0 then
    return redis.error_reply('INVALID default life and grace are integers of 1 or more, and the instant of 0 or more')
end
