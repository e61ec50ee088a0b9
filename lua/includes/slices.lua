-- unpack() puts every value on the interpreter's stack, which holds about 8,000: long lists are cut into slices.
local SLICE = 1000

local function each_slice(values, work)
    for first = 1, #values, SLICE do
        work(unpack(values, first, math.min(first + SLICE - 1, #values)))
    end
end
