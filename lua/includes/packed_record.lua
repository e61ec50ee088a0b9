-- A record begins with its packet id, expiry, kind (1 PUBLISH, 2 PUBREL) and the bytes between this head and its payload.
local HEAD, HEAD_BYTES = '>HdBI4', 15
