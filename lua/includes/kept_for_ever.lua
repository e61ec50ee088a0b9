-- Expiry of a set of references that is kept for ever and whose session has a note of what has been sent: in the year
-- 144,683. Only our scripts give a set an expiry, so that it tells whether the set is the one that the note speaks of.
local KEPT_MS = '4503599627370496'
