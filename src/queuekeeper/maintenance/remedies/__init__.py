"""Mends one kind of fault per remedy in sessions that may be in use; each remedy is a job of the engine."""
