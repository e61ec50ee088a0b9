-- Integers travel as decimal text. Beyond 2^53 a Lua number, and a sorted set's score, is no longer exact.
local function integer(text)
    if text == nil or #text > 17 or not string.find(text, '^%-?%d+$') then
        return nil
    end
    local number = tonumber(text)
    if number > 9007199254740992 or number < -9007199254740992 then
        return nil
    end
    return number
end
