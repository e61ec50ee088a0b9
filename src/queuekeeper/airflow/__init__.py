"""Queuekeeper inside Airflow: hooks, operators, parameters and the plugin."""
