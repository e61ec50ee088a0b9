"""Adds Queuekeeper to Airflow's UI: pages in the navigation, and tabs on every run and task."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from airflow.plugins_manager import AirflowPlugin

from queuekeeper.airflow.run_index import PREFIX, base_path


class QueuekeeperPlugin(AirflowPlugin):
    """Describes the plugin to Airflow."""

    name = "queuekeeper"

    def __init__(self) -> None:
        base = base_path()
        self.external_views = [
            {
                "name": "Queues",
                "href": f"{base}{PREFIX}/",
                "destination": "nav",
                "url_route": "queuekeeper",
                "nav_top_level": True,
            },
            {
                "name": "Progress",
                "href": f"{base}{PREFIX}/run/progress?dag_id={{DAG_ID}}&run_id={{RUN_ID}}",
                "destination": "dag_run",
                "url_route": "queuekeeper-progress",
            },
            {
                "name": "Evidence",
                "href": (
                    f"{base}{PREFIX}/task?dag_id={{DAG_ID}}&run_id={{RUN_ID}}"
                    "&task_id={TASK_ID}&map_index={MAP_INDEX}"
                ),
                "destination": "task_instance",
                "url_route": "queuekeeper-evidence",
            },
            {
                "name": "Report",
                "href": f"{base}{PREFIX}/run?dag_id={{DAG_ID}}&run_id={{RUN_ID}}",
                "destination": "dag_run",
                "url_route": "queuekeeper-report",
            },
        ]

    @classmethod
    def on_load(cls, *_: Any, **__: Any) -> None:
        """Have ``airflow dags trigger`` and the REST API refuse wrong values in our words."""
        import_module("queuekeeper.airflow.dialect")

    @property
    def fastapi_apps(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """Pages behind Airflow's sign-in; only the API server makes them, although every task loads plugins, too."""
        from queuekeeper.airflow.plugin.pages import pages  # noqa: PLC0415 - would slow down every task

        return [{"app": pages(), "url_prefix": PREFIX, "name": "queuekeeper"}]
