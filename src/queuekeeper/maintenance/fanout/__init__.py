"""Keeps fan-out queues in order."""
