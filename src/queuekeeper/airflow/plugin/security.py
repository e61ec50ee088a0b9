"""Checks who may see and do what on the plugin's pages; Airflow does not check by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.auth.managers.models.resource_details import ConnectionDetails, DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import get_user
from airflow.sdk.configuration import conf
from fastapi import Depends, HTTPException, Request

from queuekeeper.errors import UsageError
from queuekeeper.jobs.registry import kind_of
from queuekeeper.jobs.resources import POSTGRES_CONNECTION, REDIS_CONNECTION

SignedIn = Annotated[BaseUser, Depends(get_user)]


MIGRATION_DAG = kind_of("session_migration").dag

REPORTING = (MIGRATION_DAG, "queue_quality")
"""DAGs that stand for all: who may see runs of both may read the report of each run, also of another DAG."""

_STEER = "start runs of {}, so you may not steer one either."


def may_read_runs(user: SignedIn) -> None:
    """Require a signed-in user (401) who may see runs of the DAGs that stand for all (403)."""
    for dag_id in REPORTING:
        _demand("GET", DagAccessEntity.RUN, dag_id, user, "see runs of {}.")


def may_read_audit(user: SignedIn) -> None:
    """Require a user who may read Airflow's own audit log of the DAGs that stand for all (403)."""
    for dag_id in REPORTING:
        _demand("GET", DagAccessEntity.AUDIT_LOG, dag_id, user, "read the audit log of {}.")


def may_run_migrations(user: SignedIn) -> None:
    """Require a user who may start runs of the migration, and so may answer its question (403)."""
    _demand("POST", DagAccessEntity.RUN, MIGRATION_DAG, user, _STEER)


def may_steer(kind: str, user: SignedIn) -> None:
    """Require a user who may start runs of the DAG for the kind of run in the address (403)."""
    try:
        dag_id = kind_of(kind).dag
    except UsageError:
        raise HTTPException(404, "There is no job of this name.") from None
    _demand("POST", DagAccessEntity.RUN, dag_id, user, _STEER)


def may_start(dag_id: str, user: SignedIn) -> None:
    """Require a user who may start runs of the DAG in the address (403), before its form is read."""
    _demand("POST", DagAccessEntity.RUN, dag_id, user, "start runs of {}.")


def _demand(method: Literal["GET", "POST"], entity: DagAccessEntity, dag_id: str, user: SignedIn, words: str) -> None:
    """Require a right on a DAG (403).

    :param words: end of the sentence that begins with "You may not", with braces for the DAG.
    """
    allowed = get_auth_manager().is_authorized_dag(
        method=method, access_entity=entity, details=DagDetails(id=dag_id), user=user
    )
    if not allowed:
        raise HTTPException(403, f"You may not {words.format(dag_id)}")


def may_reveal(user: SignedIn) -> None:
    """Require a user who may read the connections of both stores, and so could read payloads anyway (403)."""
    for conn_id in (POSTGRES_CONNECTION, REDIS_CONNECTION):
        allowed = get_auth_manager().is_authorized_connection(
            method="GET", details=ConnectionDetails(conn_id=conn_id), user=user
        )
        if not allowed:
            raise HTTPException(403, "You may not see payloads: that needs the right to read the stores' connections.")


def name_of_user(user: SignedIn) -> str:
    """Return the name of the signed-in user in the audit."""
    return user.get_name()


@dataclass(frozen=True, kw_only=True)
class Guards:
    """Checks before a route answers; each raises an ``HTTPException`` if the user lacks the right.

    :param read: check before every route, even one that does not exist.
    :param user: returns the name of the signed-in user.
    """

    read: Callable[..., Any] = may_read_runs
    audit: Callable[..., Any] = may_read_audit
    start: Callable[..., Any] = may_start
    run_migrations: Callable[..., Any] = may_run_migrations
    steer: Callable[..., Any] = may_steer
    reveal: Callable[..., Any] = may_reveal
    user: Callable[..., Any] = name_of_user


def check_address(request: Request) -> None:
    """Refuse an address with U+0000 (404): PostgreSQL takes no such text, as a control database or as Airflow's own."""
    given = (*request.path_params.values(), *request.query_params.keys(), *request.query_params.values())
    if any("\0" in text for text in given):
        raise HTTPException(404, "The address holds the character U+0000, which is in no name.")


def check_origin(request: Request) -> None:
    """Refuse a form that another site sends in the name of the signed-in user (403)."""
    if "authorization" in request.headers:
        # A browser does not send a token by itself.
        return
    own = {request.headers.get("host"), urlsplit(conf.get("api", "base_url", fallback="") or "").netloc}
    if urlsplit(request.headers.get("origin", "")).netloc not in own - {None, ""}:
        raise HTTPException(403, "This form was not sent from Airflow's own pages.")
