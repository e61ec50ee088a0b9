"""Fan-out queues in Redis: a message is stored once, and every registered consumer works through all of them."""

from queuekeeper.extras import exported

__getattr__, __dir__, __all__ = exported(__name__, __file__)
