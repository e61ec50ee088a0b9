-- Whether a record still has the packet id and the expiry that a caller has read; -1 stands for what none can have.
--- @include "includes/packed_end"
local function is_same(record, read_packet_id, read_end)
    if not record or #record < HEAD_BYTES then
        return record and read_packet_id == -1
    end
    local its_packet_id, expires = struct.unpack('>Hd', record)
    return its_packet_id == read_packet_id and end_of(expires) == read_end
end
