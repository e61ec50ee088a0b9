-- A consumer's notes on a claimed message: "attempts stalls lane token". The token is a hyphen while no worker has it;
-- the lane is the number of its list, from 1, for an ordered consumer, and else 0.
local function read_entry(text)
    local attempts, stalls, lane, token = string.match(text or '', '^(%d+) (%d+) (%d+) (%S+)$')
    return tonumber(attempts) or 0, tonumber(stalls) or 0, tonumber(lane) or 0, token or '-'
end
