-- Returns the error if, by the session's fields, the caller may not write to it. Most sessions have no owner and no
-- import, and most callers no epoch: for them, no work is done.
if fields[1] or fields[2] or epoch ~= '' then
    --- @include "includes/guard"
    local refused_reply = refusal(fields, epoch)
    if refused_reply then
        return refused_reply
    end
end
