--- @include "includes/integers"
-- Returns the page of a list that the caller asks for: as many items as it says, and no more than fit.
local PER_CALL = 1000
local BYTES_PER_CALL = 1000000

local offset, limit = integer(ARGV[1]), integer(ARGV[2])
if not offset or offset < 0 or not limit or limit < 1 or limit > PER_CALL then
    return redis.error_reply('INVALID an offset of 0 or more and a limit of 1 to 1000 are expected')
end
