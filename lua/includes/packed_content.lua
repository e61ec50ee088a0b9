--- @include "includes/packed_end"
--- @include "includes/packed_head"
-- Reads the content of a record; nothing when it is none that a store has written. sessions/packed_record.py reads the
-- same; finer rules belong to who delivers the message.
local META, META_BYTES = '>I8BH', 11
local RETAIN, HAS_INTERVAL = 4, 8
local function content_of(record)
    if #record < HEAD_BYTES then
        return nil
    end
    local _, expires_at_ms, kind, size = struct.unpack(HEAD, record)
    local meta = string.sub(record, HEAD_BYTES + 1, HEAD_BYTES + size)
    if #meta ~= size or size < META_BYTES or (kind ~= 1 and kind ~= 2)
        or end_of(expires_at_ms) == -1
    then
        return nil
    end
    local time_ms, flags, topic_bytes = struct.unpack(META, meta)
    local at, interval_s = META_BYTES, nil
    if flags >= 2 * HAS_INTERVAL or topic_bytes == 0 or (flags >= HAS_INTERVAL and size < at + 4) then
        return nil
    end
    if flags >= HAS_INTERVAL then
        interval_s = struct.unpack('>I4', meta, at + 1)
        at = at + 4
    end
    local rest = string.sub(meta, at + topic_bytes + 1)
    if at + topic_bytes > size or (rest ~= '' and type((select(2, pcall(cjson.decode, rest)))) ~= 'table') then
        return nil
    end
    return {
        kind = kind, qos = flags % RETAIN, time_ms = time_ms, interval_s = interval_s,
        topic = string.sub(meta, at + 1, at + topic_bytes), payload = string.sub(record, HEAD_BYTES + size + 1),
    }
end
