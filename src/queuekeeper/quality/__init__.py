"""Proves by checks on data that queues and migrations are in order."""
