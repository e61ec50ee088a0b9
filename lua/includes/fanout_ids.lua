-- Ids of messages are numbers as text; a page of them is sorted before it is put at the head of a list.
local function are_ids(values, first)
    for index = first, #values do
        if #values[index] > 16 or not string.find(values[index], '^[1-9]%d*$') then
            return false
        end
    end
    return true
end
