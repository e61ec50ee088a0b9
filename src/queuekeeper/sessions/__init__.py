"""Stores of persistent DEVICE sessions; they know neither Airflow nor Spark."""

from queuekeeper.extras import exported

__getattr__, __dir__, __all__ = exported(__name__, __file__)
