-- Expiry, in the year 144,683, of a key that is kept for ever but must show whether another program has written it
-- since. Only our scripts give these keys an expiry. A set of references that has one is the set of the note on what
-- has been sent; a last packet id that has one is unchanged since its import.
local KEPT_MS = '4503599627370496'
