"""Turns a plain table into a partitioned one while it is written to."""
