-- A record begins with its packet id, expiry, kind (1 PUBLISH, 2 PUBREL) and the bytes between this head and its
-- payload.
local HEAD_BYTES = 15
