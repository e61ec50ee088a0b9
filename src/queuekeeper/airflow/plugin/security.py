"""Who may see the plugin's pages: Airflow does not ask by itself, and its own check is internal, so it stands here."""

from __future__ import annotations

from typing import Annotated

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import get_user
from fastapi import Depends, HTTPException

SignedIn = Annotated[BaseUser, Depends(get_user)]


REPORTING = ("session_migration", "queue_quality")
"""DAGs whose reports are shown."""


def may_read_runs(user: SignedIn) -> None:
    """Demand a signed-in user (401) who may look at runs of every DAG that writes reports (403)."""
    for dag_id in REPORTING:
        allowed = get_auth_manager().is_authorized_dag(
            method="GET", access_entity=DagAccessEntity.RUN, details=DagDetails(id=dag_id), user=user
        )
        if not allowed:
            raise HTTPException(403, f"You may not see runs of {dag_id}.")
