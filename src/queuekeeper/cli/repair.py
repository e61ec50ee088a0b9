"""``queuekeeper repair``: mend sessions by one remedy: plan, ask, do, take back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from queuekeeper.cli import context, jobs, runs
from queuekeeper.cli.command import PLANS, OnServers, command, group
from queuekeeper.cli.options import takes
from queuekeeper.cli.output import Shown
from queuekeeper.errors import UsageError
from queuekeeper.identity import hash_key
from queuekeeper.maintenance.remedies.model import PURPOSES, Purpose, Queue, RemedyParameters

app = group()


def _add(remedy: str, purpose: Purpose) -> None:
    def repair(
        call: OnServers,
        client_ids: Annotated[
            list[str] | None, typer.Argument(metavar="CLIENT", help="The MQTT client ids of the sessions.")
        ] = None,
        *,
        parameters: RemedyParameters,
        go_on: jobs.GoOn = None,
        report_directory: jobs.ReportDirectory = None,
        undo_file: Annotated[
            Path | None,
            typer.Option(
                metavar="FILE",
                parser=context.undo_place,
                help="Where to note what is changed, a file or a URL of an object store.",
                show_default="in QUEUEKEEPER_UNDO_DIR",
            ),
        ] = None,
    ) -> Shown:
        wanted, queues = (parameters, None) if go_on and not client_ids else _chosen(client_ids or [], parameters)
        told: dict[str, Any] = {"report_directory": report_directory, "undo_file": undo_file, "given": queues}
        return jobs.carry_out(call, remedy, wanted, go_on=go_on, **told)

    repair.__doc__ = (
        f"{purpose.text}\n\nUndo: {purpose.undo}\n\nExample: `queuekeeper repair {remedy} meter-17 --dry-run`"
    )
    asks = takes(
        lambda: RemedyParameters, names={"quality_run_id": ["--quality-run"], "client_hashes": ["--client-hash"]}
    )
    command(app, remedy, also=PLANS, asks=asks, short_help=purpose.in_short)(repair)


for _remedy, _purpose in PURPOSES.items():
    _add(_remedy, _purpose)


@command(
    app, also=PLANS, asks=takes(lambda: RemedyParameters, only=["max_operations_per_s"]),
    short_help="Take a repair back by its undo file.",
)  # fmt: skip
def undo(
    call: OnServers,
    file: Annotated[Path, typer.Argument(metavar="FILE", parser=context.undo_place)],
    *,
    parameters: RemedyParameters,
) -> Shown:
    """Undo a repair in the queues that nobody has changed since; `queuekeeper run undo RUN` finds the file by itself.

    Example: `queuekeeper repair undo 3f2a9c0d11e47b58.queues.undo.jsonl --dry-run`

    :param file: Undo file that a repair has written, or its URL in an object store.
    """
    return runs.take_run_back(call, undo_file=file, max_operations_per_s=parameters.max_operations_per_s)


def _chosen(client_ids: list[str], asked: RemedyParameters) -> tuple[RemedyParameters, list[Queue] | None]:
    """Return the parameters of a run, and the sessions that were named; none where a quality run chooses them."""
    given: dict[str, Any] = {name: getattr(asked, name) for name in asked.model_fields_set}
    if bool(client_ids) == ("quality_run_id" in given):
        raise UsageError("name either client ids or --quality-run with the id of a run")
    if client_ids:
        from queuekeeper.maintenance.remedies.queues import named_queues

        queues = named_queues(client_ids, key=hash_key(context.settings()))
        return RemedyParameters(**given | {"client_hashes": tuple(each.client_hash for each in queues)}), queues
    return asked, None
