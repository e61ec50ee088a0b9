-- State of a session that has none yet, whose key may hold its owner. The next save counts its messages.
local function new_state(fields)
    return {
        last = -1, ids = 0, bound = 9007199254740992, free = 0, largest = 0, earliest = 0, until_ms = 0,
        guarded = fields > 0 and 1 or 0, since = 0, offset = 0, head = 0, delivered = -1, others = fields + 1,
        trimmed = 0, expired = 0, refused = 0, quarantined = 0,
    }
end
