-- Where the value of a member of an object is, if it is a string without escaped quotes; nil when there is none. A
-- quoted name cannot occur inside a JSON string, whose quotes are escaped, and as a value no colon follows it.
local function string_member(json, name)
    local quoted = '"' .. name .. '"'
    local from, to = string.find(json, quoted, 1, true)
    while from do
        local _, opening = string.find(json, '^%s*:%s*"', to + 1)
        if opening then
            local closing = string.find(json, '"', opening + 1, true)
            return closing and opening + 1, closing and closing - 1
        end
        from, to = string.find(json, quoted, to + 1, true)
    end
    return nil
end
