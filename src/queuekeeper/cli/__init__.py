"""The command ``queuekeeper``: what the DAGs call, for people and scripts."""

from __future__ import annotations

from queuekeeper.cli.application import app, main

__all__ = ["app", "main"]
