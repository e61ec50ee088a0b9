"""What migrations write down: plans, progress and the ledger that proves a copy."""
