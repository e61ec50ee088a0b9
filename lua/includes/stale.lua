-- The answer to a fence that is not the current one, with incarnation and epoch as the queue has them first of fields;
-- nothing when it is.
local function stale(fields, incarnation, epoch)
    if fields[1] ~= incarnation or fields[2] ~= epoch then
        return redis.error_reply('STALE the queue is gone, rewound or another subscription has it')
    end
    return nil
end
