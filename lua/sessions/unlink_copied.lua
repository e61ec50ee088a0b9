#!lua flags=allow-oom
--[[
Purpose
    Remove a key whose content has been copied elsewhere, if the content is unchanged.
KEYS
    [1]  copied          key of a record, of a last packet id or of a session's fields
ARGV
    [1]  digest          SHA-1 of the content that was copied; of fields: of <bytes>:<text> for each name and its value,
                         in the order of the names
Returns
    1  it was removed
    0  its content has changed, or there is none; nothing was written
Errors
    INVALID  1 key and a digest are expected
Cost
    O(B) for B bytes; about 4 us, and 1 us per 200 bytes.
]]
if #KEYS ~= 1 or #ARGV ~= 1 or #ARGV[1] ~= 40 then
    return redis.error_reply('INVALID 1 key and a digest are expected')
end

local function text_of_fields()
    local values, names = {}, {}
    local pairs_found = redis.call('HGETALL', KEYS[1])
    for index = 1, #pairs_found, 2 do
        names[#names + 1] = pairs_found[index]
        values[pairs_found[index]] = pairs_found[index + 1]
    end
    table.sort(names)
    for index, name in ipairs(names) do
        names[index] = #name .. ':' .. name .. #values[name] .. ':' .. values[name]
    end
    return table.concat(names)
end

-- MGET reads a key of another type as nothing.
local content = redis.call('MGET', KEYS[1])[1]
if not content and redis.call('TYPE', KEYS[1]).ok == 'hash' then
    content = text_of_fields()
end
if not content or redis.sha1hex(content) ~= ARGV[1] then
    return 0
end
return redis.call('UNLINK', KEYS[1])
