--- @include "includes/fanout_log"
local ENTRIES_PER_READ = 100

-- Returns the ids behind a cursor, a list per lane, as many as are wanted or up to 99 more if there are as many, and
-- the new cursor.
local function read_log(keys, cursor, reached, wanted, lanes)
    local lists, count = {}, 0
    for lane = 1, lanes do
        lists[lane] = {}
    end
    local last = string.format('%d-0', reached)
    while count < wanted and cursor < reached do
        local most = math.min(wanted - count, ENTRIES_PER_READ)
        local entries = redis.call('XRANGE', keys.log, string.format('(%d-0', cursor), last, 'COUNT', most)
        local read = 0
        while read < #entries and count < wanted do
            read = read + 1
            for id, order_hash in string.gmatch(entries[read][2][2], '(%d+):?(%d*)') do
                local list = lists[order_hash == '' and 1 or tonumber(order_hash) % lanes + 1]
                list[#list + 1] = id
                count = count + 1
            end
            cursor = tonumber(string.match(entries[read][1], '^%d+'))
        end
        if read == #entries and read < most then
            cursor = reached
        end
    end
    return lists, cursor
end
