--- @include "includes/fanout_late"
-- Returns whether a message may be removed because it has expired. A message that was kept beyond the expiry in its
-- record was worked on: it stays a while longer, so that a worker can take it up again.
local function is_over(kept_until, expires_at, now)
    kept_until = tonumber(kept_until or nil)
    if kept_until and expires_at and kept_until > tonumber(expires_at) then
        kept_until = kept_until + LATE_MS
    end
    return kept_until and kept_until <= now
end
