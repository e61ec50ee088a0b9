"""Remedies for sessions in use: each mends one kind of fault and is a job of the engine."""
