"""Private servers for a first try and for tests: PostgreSQL, Valkey or Redis, Java and Airflow."""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
