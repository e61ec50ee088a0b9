-- Time for which a payload outlives its message if nothing else removes it. A message that was worked on after its
-- expiry is kept as long, except for upkeep, since busy workers may be late with a retry or a lease that ran out.
local LATE_MS = 600000
