-- Score of an id that waits for its instant: ids come in the order of their instants, and those of one instant in their
-- own. A sorted set has members of one score in the order of letters, which is that of numbers with as many digits; so
-- the digits are counted in 32nds of a millisecond.
local function due_score(due, id)
    return string.format('%d.%05d', due, 3125 * #id)
end
