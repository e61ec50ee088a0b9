-- When a record says that it ends; -1 when that is no instant.
local function end_of(expires_at_ms)
    if expires_at_ms ~= expires_at_ms or expires_at_ms < 0 or expires_at_ms > 9007199254740992 then
        return -1
    end
    return expires_at_ms
end
