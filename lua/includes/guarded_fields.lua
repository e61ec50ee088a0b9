-- Who may not write to the session, by the fields read of it, is answered. Most sessions have no owner and no import,
-- and most callers no epoch: for them nothing is made.
if fields[1] or fields[2] or epoch ~= '' then
    --- @include "includes/guard"
    local refused_reply = refusal(fields, epoch)
    if refused_reply then
        return refused_reply
    end
end
