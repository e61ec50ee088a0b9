"""Compacted queues in Redis: the newest value of each key, in order, for one consumer at a time."""
