#!lua flags=allow-oom
--[[
Purpose
    Remove one key whose content has been copied elsewhere, if it still is that content.
KEYS
    [1]  copied          key of a record or of a last packet id
ARGV
    [1]  digest          SHA-1 of the content that was copied
Returns
    1  it was removed
    0  its content is another, or there is none; nothing was written
Errors
    INVALID  1 key and a digest are expected
Cost
    O(B) for B bytes; about 4 us, and 1 us per 200 bytes.
]]
if #KEYS ~= 1 or #ARGV ~= 1 or #ARGV[1] ~= 40 then
    return redis.error_reply('INVALID 1 key and a digest are expected')
end

-- MGET reads a key of another type as nothing.
local content = redis.call('MGET', KEYS[1])[1]
if not content or redis.sha1hex(content) ~= ARGV[1] then
    return 0
end
return redis.call('UNLINK', KEYS[1])
