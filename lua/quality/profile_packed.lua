#!lua flags=no-writes
--[[
Purpose
    Measure a packed session and a page of its messages. Only numbers and the session's state are returned: nothing of a
    message's content leaves the server. Call it until the cursor is 0; what stays meanwhile is returned, perhaps twice,
    in no order.
KEYS
    [1]  session        the session
ARGV
    [1]  cursor         0, or that of the call before
    [2]  count          fields to look at, about; 1 to 200, fewer where messages are large
    [3]  default_ttl_s  lifetime of a message without expiry interval
    [4]  fingerprints   1 to return hashes of contents, too; else 0
Returns
    {cursor, kind, pexpiretime, now_ms, state, fields, is_whole,
     *page(serial, packet_id, expires_at_ms, bytes, faults, fingerprint, due_ms)}
                        of the next call, 0 after the last one; 1 for a hash, 0 for none, -1 for a key of another type;
                        expiry of the key in ms, -1 without one; the server's time; state as includes/packed_format
                        describes it, empty for none; fields of the hash; 0 while its import is not complete, else 1;
                        then seven numbers per message: packet id -1 for no record; expiry -1 when it is no instant;
                        faults are a sum of 1 unreadable, 4 quality of service 3, 8 quality of service 0, 16 a PUBREL
                        below quality of service 2, 32 expires over a minute later than it should, 64 a PUBREL, which is
                        no fault; 48 bits of a hash over topic, time and payload, 0 when unreadable or not asked for;
                        when it should expire, 0 when unreadable
Errors
    INVALID  an argument breaks the rules above
Cost
    O(B) for B bytes of the page; about 3 us per message of 300 B. Some 250 KB per call, or one message.
]]
--- @include "includes/hash_page"
--- @include "includes/integers"
--- @include "includes/message_digest"
--- @include "includes/packed_content"
--- @include "includes/packed_state"
--- @include "includes/time"

local BYTES_PER_CALL = 250000
local STATE_BYTES = struct.size(STATE)
-- The lifetime counts from the message's time, which a broker sets shortly before it stores the message.
local GRACE_MS = 60000

local session_key = KEYS[1]
local count, default_ttl_s = integer(ARGV[2]), integer(ARGV[3])
if #KEYS ~= 1 or #ARGV ~= 4 or not string.find(ARGV[1], '^[%x/]+$') or not count or count < 1 or count > 200
    or not default_ttl_s or default_ttl_s < 1 or (ARGV[4] ~= '0' and ARGV[4] ~= '1')
then
    return redis.error_reply('INVALID 1 key, a cursor, a count of 1 to 200, a default life and 0 or 1 are expected')
end
local with_fingerprints = ARGV[4] == '1'

local function judge(record, expires_at_ms)
    local message = content_of(record)
    if not message then
        return 1, 0, 0
    end
    local faults = message.kind == 2 and 64 or 0
    if message.qos == 0 then
        faults = faults + 8
    elseif message.qos == 3 then
        faults = faults + 4
    end
    if message.kind == 2 and message.qos ~= 2 then
        faults = faults + 16
    end
    local due_ms = math.min(message.time_ms + 1000 * (message.interval_s or default_ttl_s), 9007199254740991)
    if expires_at_ms > due_ms + GRACE_MS then
        faults = faults + 32
    end
    local fingerprint = with_fingerprints and tonumber(string.sub(message_digest(message), 1, 12), 16) or 0
    return faults, fingerprint, due_ms
end

local found = redis.call('TYPE', session_key).ok
local expiry = redis.call('PEXPIRETIME', session_key)
if found ~= 'hash' then
    return { '0', found == 'none' and 0 or -1, expiry, now_ms(), '', 0, 1 }
end
local text = redis.call('HGET', session_key, 's')
local state = unpacked(text and #text == STATE_BYTES and text)
if state and state.largest > 0 then
    -- The server reads the records with their names.
    count = math.max(1, math.min(count, math.floor(BYTES_PER_CALL / state.largest)))
end
local progress = redis.call('HGET', session_key, 'import')
local cursor, page = hash_page(session_key, ARGV[1], string.format('%d', count))
local reply = {
    cursor, 1, expiry, now_ms(), text or '', redis.call('HLEN', session_key),
    (not progress or progress == 'done') and 1 or 0,
}
for index = 1, #page, 2 do
    local serial, record = integer(page[index]), page[index + 1]
    if serial and serial >= 0 then
        local packet_id, expires_at_ms = -1, -1
        if #record >= HEAD_BYTES then
            packet_id, expires_at_ms = struct.unpack('>Hd', record)
        end
        local faults, fingerprint, due_ms = judge(record, expires_at_ms)
        local at = #reply
        reply[at + 1], reply[at + 2], reply[at + 3], reply[at + 4] = serial, packet_id, end_of(expires_at_ms), #record
        reply[at + 5], reply[at + 6], reply[at + 7] = faults, fingerprint, due_ms
    end
end
return reply
