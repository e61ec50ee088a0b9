"""Judges rows of queues by expectation suites and keeps what was found."""
