-- A session accepts no messages and reserves no packet ids while the other store owns it, while it moves there, or
-- until its import is complete.
local function takes_messages(owner, import)
    return owner ~= 'postgres' and owner ~= 'fenced' and (not import or import == 'done')
end
