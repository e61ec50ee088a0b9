-- A session that PostgreSQL owns or that is on its way there, or whose import is not complete, takes no messages and
-- gives out no packet ids.
local function takes_messages(owner, import)
    return owner ~= 'postgres' and owner ~= 'fenced' and (not import or import == 'done')
end
