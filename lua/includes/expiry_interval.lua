-- Seconds of life that a record says of itself: four bytes without a sign that TBMQ holds in a signed number, whose
-- highest value stands for itself and for all that it has no room for.
local function expiry_interval_s(value)
    if value < 0 then
        return value + 4294967296
    end
    return value == 2147483647 and 4294967295 or value
end
