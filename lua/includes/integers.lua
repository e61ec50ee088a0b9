-- Integers are decimal texts without leading zeros, which the server's commands refuse. Beyond 2^53 a Lua number, and a
-- sorted set's score, is not exact.
local function integer(text)
    if text == '0' then
        return 0
    end
    if text == nil or #text > 17 or not string.find(text, '^%-?[1-9]%d*$') then
        return nil
    end
    -- Adding 0 reads the text once, tonumber() twice.
    local number = text + 0
    if number > 9007199254740992 or number < -9007199254740992 then
        return nil
    end
    return number
end
