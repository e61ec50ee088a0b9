-- Expiry of a key that is kept for ever, but is to show whether another program has written it since: in the year
-- 144,683. Only our scripts give these keys an expiry. A set of references that has one is the set that a note of what
-- has been sent speaks of; a last packet id that has one is as an import left it.
local KEPT_MS = '4503599627370496'
