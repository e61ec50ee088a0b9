"""Parses command lines as the command line does, and runs nothing."""

from __future__ import annotations

import shlex

from typer.main import get_command

from queuekeeper.cli import app

COMMAND = get_command(app)


def check(line: str) -> None:
    """Parse a command line down to its command."""
    words = shlex.split(line, comments=True)[1:]
    for end in ("|", ">", ">>", "<", "&&", "&", "2>&1"):
        if end in words:
            words = words[: words.index(end)]
    context = COMMAND.make_context("queuekeeper", list(words), resilient_parsing=False)
    while hasattr(context.command, "resolve_command"):
        left = [*context._protected_args, *context.args]  # what click's own runner reads
        if not left:
            return
        name, found, rest = context.command.resolve_command(context, left)
        assert found is not None
        context = found.make_context(name, rest, parent=context)
