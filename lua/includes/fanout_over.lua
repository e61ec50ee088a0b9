--- @include "includes/fanout_late"
-- Whether whoever meets a message may remove it, since its life is over. One that was kept behind the end that its
-- record names was being worked on: it stays a while longer, for whoever takes that up.
local function is_over(kept_until, expires_at, now)
    kept_until = tonumber(kept_until or nil)
    if kept_until and expires_at and kept_until > tonumber(expires_at) then
        kept_until = kept_until + LATE_MS
    end
    return kept_until and kept_until <= now
end
