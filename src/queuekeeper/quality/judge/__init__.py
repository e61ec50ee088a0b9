"""Judges rows of queues by expectation suites and keeps the findings."""
