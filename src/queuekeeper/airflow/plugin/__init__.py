"""Queuekeeper's place in Airflow's UI: a page in the navigation and a tab on every run."""

from __future__ import annotations

from typing import Any

from airflow.plugins_manager import AirflowPlugin

from queuekeeper.airflow.run_index import PREFIX, base_path


class QueuekeeperPlugin(AirflowPlugin):
    """What Airflow is told of Queuekeeper."""

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
                "name": "Report",
                "href": f"{base}{PREFIX}/run?dag_id={{DAG_ID}}&run_id={{RUN_ID}}",
                "destination": "dag_run",
                "url_route": "queuekeeper-report",
            },
        ]

    @property
    def fastapi_apps(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """Pages behind Airflow's sign-in; made for the API server only, since every task loads plugins too."""
        from queuekeeper.airflow.plugin.pages import pages  # noqa: PLC0415 - would slow down every task

        return [{"app": pages(), "url_prefix": PREFIX, "name": "queuekeeper"}]
