-- A session that PostgreSQL owns, or whose import is not complete, takes no messages and gives out no packet ids.
local function takes_messages(owner, import)
    return owner ~= 'postgres' and (not import or import == 'done')
end
