"""Compacted queues in Redis: the newest value of each key, in order, for one consumer at a time."""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
