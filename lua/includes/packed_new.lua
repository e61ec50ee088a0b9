-- State of a session that has none yet, whose key may hold its owner.
local function new_state(fields)
    return {
        last = -1, ids = 0, free = 0, head = 0, delivered = -1, others = fields + 1, largest = 0, earliest = 0,
        until_ms = 0, guarded = fields > 0 and 1 or 0, since = 0, offset = 0, trimmed = 0, expired = 0, refused = 0,
        quarantined = 0,
    }
end
