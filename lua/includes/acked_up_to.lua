-- The cursor is just before the lowest sequence in flight and never goes back, in whatever order acknowledgements come.
-- The script passes the number of members that are left, since while a cluster moves a slot, a command on a key that
-- the script has emptied fails. The score is used, because a member may be damaged.
local function acked_up_to(in_flight_key, in_flight, sent, acked)
    local lowest = in_flight > 0 and redis.call('ZRANGE', in_flight_key, '0', '0', 'WITHSCORES')[2]
    return math.max(acked, lowest and lowest - 1 or sent)
end
