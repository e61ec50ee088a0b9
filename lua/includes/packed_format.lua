-- State of a packed session, which is one field of doubles: last serial, -1 before the first; packet ids given out, not
-- wrapped; messages that there are at most; up to which packet id all are free; bytes of the largest record; earliest
-- expiry, 0 for none; expiry of the key, -1 for never, 0 for not set; 1 if owner or import has to be looked at; serial
-- from which on a packet id is its serial and the next number; serial below which no message is; serial up to which
-- messages were sent, -1 for none; fields that are no messages; messages trimmed, expired, refused and quarantined.
local STATE = '>ddddddddddddddddd'
