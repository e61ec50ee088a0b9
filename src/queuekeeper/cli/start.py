"""``queuekeeper run start``: a command for every job of the engine, made of the job's model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from queuekeeper.cli.command import OnPostgres, OnServers
from queuekeeper.cli.jobs import command_of
from queuekeeper.cli.options import JobCommand
from queuekeeper.errors import UsageError
from queuekeeper.jobs.registry import job_of, jobs_in_short

HELP = """{words}

It plans first, and asks before anything changes. Exit code 1 when it was stopped or something cannot be worked on;
--go-on goes on.

Example: `queuekeeper run start {kind} --dry-run`
"""


class Commands(Mapping[str, Any]):
    """The commands by the names of the jobs; a job is imported when somebody takes its command."""

    def __iter__(self) -> Iterator[str]:
        return iter(jobs_in_short())

    def __len__(self) -> int:
        return len(jobs_in_short())

    def __getitem__(self, kind: str) -> Any:
        try:
            job = job_of(kind)
        except UsageError as error:
            raise KeyError(kind) from error
        words = HELP.format(words=jobs_in_short()[kind], kind=kind)
        made = typer.Typer(add_completion=False, rich_markup_mode=None)
        on = OnServers if job.on_redis else OnPostgres
        made.command(kind, cls=JobCommand)(command_of(kind, words, on=on))
        return get_command(made)


class StartGroup(TyperGroup):
    """The group, whose help imports no job."""

    @property
    def commands(self) -> Any:
        """The commands by name."""
        return Commands()

    @commands.setter
    def commands(self, none: Any) -> None:
        """Take no other commands."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a job's command.

        :raises UsageError: when there is no such job; says which command starts runs that are no job's.
        """
        if not ctx.resilient_parsing:
            job_of(cmd_name)
        return self.commands.get(cmd_name)

    def format_commands(self, _: Any, formatter: Any) -> None:
        """Write the name of each job and a sentence about it."""
        with formatter.section("Jobs"):
            formatter.write_dl([*jobs_in_short().items()])


app = typer.Typer(
    cls=StartGroup, no_args_is_help=True, rich_markup_mode=None, subcommand_metavar="JOB [OPTIONS]",
    help="Start a run of a job: plan, question, work, second look.",
)  # fmt: skip
