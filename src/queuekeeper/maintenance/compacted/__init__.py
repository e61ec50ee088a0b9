"""Keeps compacted queues in order."""
