"""Compacted queues in Redis: the newest value of each key, in order, for one consumer at a time."""

from queuekeeper.extras import exported

__getattr__, __dir__, __all__ = exported(__name__, __file__)
