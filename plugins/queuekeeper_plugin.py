"""Registers Queuekeeper's pages where the package is importable but not installed, so that no entry point names them.

Where it is installed, Airflow finds the plugin by its entry point, and would report a second registration as an error.
Airflow imports this file under its own stem. It may not be called ``queuekeeper``: that would hide the package.
"""

from __future__ import annotations

from importlib.metadata import entry_points

if not any(each.module == "queuekeeper.airflow.plugin" for each in entry_points(group="airflow.plugins")):
    from queuekeeper.airflow.plugin import QueuekeeperPlugin

    __all__ = ["QueuekeeperPlugin"]
