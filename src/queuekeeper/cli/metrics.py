"""``queuekeeper metrics``: figures of servers and queues, for Prometheus."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from queuekeeper.cli import context
from queuekeeper.cli.command import Call
from queuekeeper.cli.output import screen
from queuekeeper.errors import RefusedError, UsageError


class OnStores(Call):
    """A call of a command that asks both stores, and writes what programs read."""

    takes = ("postgres_url", "redis_url")


def metrics(call: OnStores, *, output: Annotated[Path | None, typer.Option("--output", "-o")] = None) -> None:
    """Print figures for Prometheus.

    Nothing is scanned: figures of queues are those of the last profile or judgement. For a server that is down
    `queuekeeper_up` is 0, and the exit code is 1.

    Example: `queuekeeper metrics --output /var/lib/node_exporter/queuekeeper.prom`

    :param output: File to write, for node_exporter's textfile collector. Without it, stdout.
    """
    from queuekeeper.metrics import gather
    from queuekeeper.places import write_whole

    source, target = context.postgres_address(call.postgres_url), context.redis_address(call.redis_url)
    gathered = gather(postgres_url=source, redis_url=target)
    if output is None:
        sys.stdout.write(gathered.text)
    else:
        if not output.parent.is_dir():
            raise UsageError(f"{output.parent} is no folder: name one that is there")
        try:
            write_whole(output, gathered.text.encode())
        except OSError as error:
            raise RefusedError(f"cannot write {output}: {error.strerror}") from error
    for failure in gathered.failures:
        screen(stderr=True).print(context.redact(failure), soft_wrap=True)
    if gathered.failures:
        raise typer.Exit(1)
