-- Returns the score of an id that waits for its instant: ids are ordered by instant, and within an instant by number. A
-- sorted set orders members of one score as texts, which is right for numbers of as many digits; so the number of
-- digits is added in 32nds of a millisecond.
local function due_score(due, id)
    return string.format('%d.%05d', due, 3125 * #id)
end
