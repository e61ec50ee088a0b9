-- Returns scores as text such as 17-20,25, in the given order; '*' if a score of another program is not a serial.
local function serial_runs(scores)
    local runs, first, last = {}, nil, nil
    for _, text in ipairs(scores) do
        if not string.find(text, '^%d+$') then
            return '*'
        end
        if last and text - last == 1 then
            runs[#runs] = first .. '-' .. text
        else
            first = text
            runs[#runs + 1] = text
        end
        last = text
    end
    return table.concat(runs, ',')
end
