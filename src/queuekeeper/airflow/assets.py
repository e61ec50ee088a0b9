"""Assets that other DAGs are scheduled on."""

from __future__ import annotations

from airflow.sdk import Asset

SESSION_QUALITY = Asset(name="queuekeeper_session_quality", uri="queuekeeper://sessions/quality")
"""Asset that is updated when the queues of sessions are in order; a DAG that is scheduled on it waits for that."""
