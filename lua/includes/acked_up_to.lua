-- The cursor stands before the lowest sequence in flight and never goes back, in whatever order acknowledgements come.
-- While its slot moves, a key that a script has emptied is not this server's any more, and a further command on it
-- fails: the script says how many are left. The score counts: a member may be damaged.
local function acked_up_to(in_flight_key, in_flight, sent, acked)
    local lowest = in_flight > 0 and redis.call('ZRANGE', in_flight_key, '0', '0', 'WITHSCORES')[2]
    return math.max(acked, lowest and lowest - 1 or sent)
end
