--- @include "includes/delivered"
-- Moves the notes of our last save when the last packet id is moved without a message. This part reads; the function
-- that it returns writes, and is called after the move.
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
