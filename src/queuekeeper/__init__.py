"""Queuekeeper moves, maintains and proves message queues that live in Redis and PostgreSQL."""

from queuekeeper.extras import name_missing_extras

__version__ = "0.1.0"

name_missing_extras()
