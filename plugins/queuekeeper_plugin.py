"""Registers Queuekeeper's pages with Airflow; the pages themselves are in the package.

Airflow imports this file under its own stem. It may not be called ``queuekeeper``: that would hide the package.
"""

from __future__ import annotations

from queuekeeper.airflow.plugin import QueuekeeperPlugin

__all__ = ["QueuekeeperPlugin"]
