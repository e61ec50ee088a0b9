-- Expiry interval of a record in seconds: an unsigned number of four bytes that TBMQ keeps in a signed one, whose
-- highest value stands for itself and for all greater values.
local function expiry_interval_s(value)
    if value < 0 then
        return value + 4294967296
    end
    return value == 2147483647 and 4294967295 or value
end
