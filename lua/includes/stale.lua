-- Returns the error for a fence that is not the current one, else nothing. The queue's incarnation and epoch come first
-- in fields.
local function stale(fields, incarnation, epoch)
    if fields[1] ~= incarnation or fields[2] ~= epoch then
        return redis.error_reply('STALE the queue is gone, rewound or another subscription has it')
    end
    return nil
end
