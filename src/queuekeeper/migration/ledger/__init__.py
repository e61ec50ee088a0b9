"""Records of migrations: plans, progress and the ledger that proves a copy."""
