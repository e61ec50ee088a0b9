local function is_token(text)
    return #text <= 64 and string.find(text, '^%w[%w_-]*$') ~= nil
end
