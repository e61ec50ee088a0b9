"""Moves sessions from PostgreSQL to Redis: plan, copy, verify, and the ledger that proves it."""
