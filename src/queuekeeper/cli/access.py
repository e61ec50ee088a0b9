"""``queuekeeper acl``: users and roles with the least that each job needs."""

# ruff: noqa: PLC0415 - each command imports what it needs, so that --help answers at once
from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from queuekeeper.cli import context
from queuekeeper.cli.output import show

if TYPE_CHECKING:
    from rich.console import Console

app = typer.Typer(no_args_is_help=True, help="Print users and roles with the least that each job needs.")

Job = Annotated[
    list[str] | None, typer.Option("--job", metavar="JOB", help="Of this job only; may be given several times.")
]


@app.callback()
def _group() -> None:
    """Print users and roles with the least that each job needs."""


@app.command()
def redis(
    *,
    job: Job = None,
    key_prefix: Annotated[str | None, typer.Option("--key-prefix", help="Else QUEUEKEEPER_KEY_PREFIX.")] = None,
    as_json: context.AsJson = False,
) -> None:
    """Print `ACL SETUSER` for each job.

    Nothing is sent anywhere: put passwords in, and give it to each master.

    Example: `queuekeeper acl redis --job quality --job cleanup`
    """
    from rich.text import Text

    from queuekeeper.access import redis_user, redis_users

    prefix = context.settings().key_prefix if key_prefix is None else key_prefix
    users = [redis_user(name) for name in dict.fromkeys(job)] if job else list(redis_users().values())
    found = [
        {
            "job": user.job,
            "purpose": user.purpose,
            "reads_payloads": user.reads_payloads,
            "command": user.command(key_prefix=prefix),
        }
        for user in users
    ]

    def pretty(out: Console) -> None:
        for each in found:
            out.print(Text(f"# {each['purpose']}", style="dim"), soft_wrap=True)
            out.print(Text(str(each["command"])), soft_wrap=True)

    show({"users": found}, as_json=as_json, pretty=pretty)
