-- Makes the notes that read_entry reads.
local function write_entry(attempts, stalls, lane, token)
    return string.format('%d %d %d %s', attempts, stalls, lane, token)
end
