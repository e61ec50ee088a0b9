--- @include "includes/packed_record"
local HEAD = '>HdBI4'
