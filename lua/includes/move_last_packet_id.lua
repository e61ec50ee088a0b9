--- @include "includes/delivered"
-- What we remember goes along where we move the last packet id without a message. Reads first; the function that it
-- returns writes, and comes behind the move.
local function move_of_last_packet_id(messages_key, session_key, before, after)
    local noted = redis.call(
        'HMGET', session_key, 'delivered_serial', 'delivered_at', 'saved_last_packet_id', 'last_serial'
    )
    local delivered = delivered_up_to(messages_key, before, noted)
    local greatest = noted[1] and redis.call('ZRANGE', messages_key, '0', '0', 'REV', 'WITHSCORES')[2]
    return function()
        if noted[3] and noted[3] == before then
            redis.call('HSET', session_key, 'saved_last_packet_id', after)
        end
        if noted[1] and (noted[2] or noted[3] ~= before) and delivered >= 0 then
            redis.call(
                'HSET', session_key, 'delivered_serial', string.format('%d', delivered),
                'delivered_at', after .. ':' .. (greatest or noted[1])
            )
        end
    end
end
