-- Returns how many packet ids have been given out, not wrapped, when another one becomes the last one.
local function ids_up_to(ids, packet_id)
    return ids == 0 and packet_id or ids + (packet_id - ids) % 65535
end
