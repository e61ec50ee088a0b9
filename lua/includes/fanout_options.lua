-- Options of a consumer are the text "mode when_failed lanes max_length when_full dead_retention_ms idle_expiry_ms"; a
-- length or idle expiry of 0 means none. A consumer with mode "leaving" is being removed and is no longer a member.
local function read_options(text)
    local mode, when_failed, lanes, max_length, when_full, dead_retention_ms, idle_expiry_ms =
        string.match(text, '^(%l+) (%l+) (%d+) (%d+) ([%l_]+) (%d+) (%d+)$')
    if not mode then
        return nil
    end
    return {
        mode = mode,
        when_failed = when_failed,
        lanes = tonumber(lanes),
        max_length = tonumber(max_length),
        when_full = when_full,
        dead_retention_ms = tonumber(dead_retention_ms),
        idle_expiry_ms = tonumber(idle_expiry_ms),
    }
end
