-- Everything Queuekeeper keeps for itself; the vendor's tables stay untouched in theirs.
CREATE SCHEMA queuekeeper;
