"""Queuekeeper inside Airflow: hooks, operators, parameters and the plugin; what they call knows nothing of Airflow."""

from __future__ import annotations

from queuekeeper.extras import needed

needed(__name__, "airflow")
