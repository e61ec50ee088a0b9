-- Returns the serial up to which the messages of a session have been sent. The note of it can become wrong when another
-- program empties the set or adds to it, so it is used only with proof. Other programs give a set no expiry, so a set
-- with an expiry is the one of the note. Messages that they have added since have packet ids after the last one that we
-- know, and greater scores than all earlier ones.

-- notes: delivered_serial, delivered_at, saved_last_packet_id, last_serial and owner of the session, false for none.
-- delivered_at holds last packet id and greatest score of the time when the note was last known to be true, if they
-- differ from those of our last save.
local function delivered_up_to(references_key, given_out, notes)
    local delivered = notes[1] and tonumber(notes[1])
    if not delivered then
        return -1
    end
    -- Only the copy writes to a session that the other store owns.
    if notes[5] == 'postgres' then
        return delivered
    end
    local expires_at_ms = redis.call('PEXPIRETIME', references_key)
    if expires_at_ms < 0 then
        return expires_at_ms == -2 and delivered or -1
    end
    local from, greatest = notes[3], notes[4]
    if notes[2] then
        from, greatest = string.match(notes[2], '^(%d*):(.*)$')
    end
    from, greatest = tonumber(from == '' and '0' or from or nil), tonumber(greatest or nil)
    if not from or not greatest then
        return -1
    end
    local added = ((tonumber(given_out) or 0) - from) % 65535
    -- More messages were added than the packet ids tell: all packet ids have been used again.
    if redis.call('ZRANGE', references_key, '0', '0', 'REV', 'WITHSCORES')[2] - greatest > added then
        return -1
    end
    local first = 0
    while added > 0 do
        local rows = redis.call(
            'ZRANGE', references_key, notes[1], '-inf', 'BYSCORE', 'REV', 'LIMIT', string.format('%d', first), '100',
            'WITHSCORES'
        )
        for place = 1, #rows, 2 do
            local packet_id = tonumber(string.match(rows[place], '_(%d+)$') or nil)
            if not packet_id or (packet_id - from - 1) % 65535 >= added then
                return first + place > 1 and math.floor(tonumber(rows[place + 1])) or delivered
            end
        end
        if #rows < 200 then
            return first + #rows > 0 and -1 or delivered
        end
        first = first + 100
    end
    return delivered
end
