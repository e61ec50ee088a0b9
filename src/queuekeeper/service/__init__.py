"""Runs consumers: each is an operation, for which this runtime waits, starts handlers, and ends in good order."""
