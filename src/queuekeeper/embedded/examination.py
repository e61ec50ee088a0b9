"""Checks the private Airflow of this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from queuekeeper.config import Settings
from queuekeeper.doctor.findings import Finding, Notes, State
from queuekeeper.embedded.stack import private_airflow, status
from queuekeeper.errors import QueuekeeperError

if TYPE_CHECKING:
    from queuekeeper.embedded.airflow_client import AirflowClient

PLUGIN = "queuekeeper"


def examine_airflow(settings: Settings) -> list[Finding]:
    """Check the private Airflow: its components, its DAG files and our pages; another Airflow is not asked."""
    notes = Notes("Airflow")
    try:
        components = [each for each in status(settings).servers if each.name not in ("postgres", "redis", "metadata")]
        if any(server.is_running for server in components):
            with private_airflow(settings).client() as client:
                _examine(notes, client)
        else:
            notes.add(
                "private Airflow", State.UNKNOWN, "not running",
                "queuekeeper up --airflow; of another Airflow, see its own health page",
            )  # fmt: skip
    except QueuekeeperError as error:
        notes.unreachable(error)
    return notes.findings


def _examine(notes: Notes, client: AirflowClient) -> None:
    health = client.health()
    ill = sorted(name for name, word in health.items() if word not in ("healthy", "None"))
    notes.add(
        "components",
        State.FAILED if ill or not health else State.OK,
        ", ".join(f"{name} {word}" for name, word in sorted(health.items()) if word != "None") or "no answer",
        "see their logs (queuekeeper status), then queuekeeper down and up --airflow",
    )
    broken = client.import_errors()
    notes.add(
        "DAG files",
        State.FAILED if broken else State.OK,
        "; ".join(broken) if broken else "all read without an error",
        "mend the file; the message names the line",
    )
    loaded = {str(plugin["name"]) for plugin in client.call("GET", "/plugins", query={"limit": 100})["plugins"]}
    errors = [
        f"{each['source']}: {each['error']}" for each in client.call("GET", "/plugins/importErrors")["import_errors"]
    ]
    notes.add(
        "pages",
        State.OK if PLUGIN in loaded and not errors else State.FAILED,
        "; ".join(errors) or ("the plugin is loaded" if PLUGIN in loaded else "the plugin is not loaded"),
        "install the package queuekeeper where Airflow's API server runs, and restart that",
    )
