-- Serials as text such as 17-20,25, in the order in which they come; '*' where a score is none: another program's.
local function serial_runs(serials)
    local runs, first, last = {}, nil, nil
    for _, serial in ipairs(serials) do
        if not string.find(serial, '^%d+$') then
            return '*'
        end
        if last and serial - last == 1 then
            runs[#runs] = first .. '-' .. serial
        else
            first = serial
            runs[#runs + 1] = serial
        end
        last = serial
    end
    return table.concat(runs, ',')
end
