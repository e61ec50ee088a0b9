"""Proves by checks on data that queues and migrations are in order; repairing them is maintenance's job."""
