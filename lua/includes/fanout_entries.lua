-- What a consumer's hash notes on a message that was claimed: "attempts stalls lane token". The token is a hyphen while
-- nobody works on it; the lane is 0 unless the consumer is ordered, and else the number of its list, from 1.
local function read_entry(text)
    local attempts, stalls, lane, token = string.match(text or '', '^(%d+) (%d+) (%d+) (%S+)$')
    return tonumber(attempts) or 0, tonumber(stalls) or 0, tonumber(lane) or 0, token or '-'
end
