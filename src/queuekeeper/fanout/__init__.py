"""Fan-out queues in Redis: a message is stored once, and every registered consumer gets it."""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
