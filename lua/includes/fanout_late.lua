-- A payload outlives its message by so long where nothing else frees it. So does a message that was worked on behind
-- the end of its life, except for upkeep: a retry or a lease that ran out is taken up late where workers have much to
-- do.
local LATE_MS = 600000
