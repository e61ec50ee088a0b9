"""Recomputes the ledger of a finished migration by one SQL query, with none of the code that copied and verified."""
