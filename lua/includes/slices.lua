-- unpack() puts every value on the stack of the interpreter, which ends near 8,000: long lists go in slices.
local SLICE = 1000

local function each_slice(values, work)
    for first = 1, #values, SLICE do
        work(unpack(values, first, math.min(first + SLICE - 1, #values)))
    end
end
