"""Queuekeeper moves, maintains and proves message queues that live in Redis and PostgreSQL."""

__version__ = "0.1.0"
