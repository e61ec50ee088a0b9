"""Queuekeeper inside Airflow: hooks, operators, parameters and the plugin; what they call knows nothing of Airflow."""
