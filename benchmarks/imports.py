"""Measure what importing a store takes, in interpreters of their own that take turns.

``python benchmarks/imports.py --rounds 20``

A package, such as ``queuekeeper.sessions``, loads a name when it is asked for. Beside it stands the class by which a
program reaches its server, with the libraries that it needs. Each is imported once beforehand, so that all is compiled.
Processor time is shown: imports wait for nothing, so it is what they take where nothing else runs.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from resource import RUSAGE_CHILDREN, getrusage

from bench import facts, in_turns, options, refuse_less_than_one, table_of
from rich.console import Console

STORES = {
    "sessions": "RedisSessionStore",
    "compacted": "CompactedQueues",
    "fanout": "FanoutQueues",
    "events": "EventBroker",
}
WAYS = {
    "Python, without any": "pass",
    "redis": "import redis",
    "psycopg": "import psycopg",
    "pydantic": "from pydantic import BaseModel",
    **{f"queuekeeper.{store}": f"import queuekeeper.{store}" for store in STORES},
    **{f"queuekeeper.{store}.{name}": f"from queuekeeper.{store} import {name}" for store, name in STORES.items()},
}


def cpu_ms(code: str) -> float:
    """Run code in an interpreter of its own, and return the processor time from its start to its end."""
    before = getrusage(RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True)
    after = getrusage(RUSAGE_CHILDREN)
    return 1e3 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def main() -> None:
    """Measure, and print a table of medians."""
    parser = options(__doc__, rounds=20)
    wanted = parser.parse_args()
    refuse_less_than_one(parser, wanted.rounds)
    ways: dict[str, Callable[[], float]] = {name: partial(cpu_ms, code) for name, code in WAYS.items()}
    for way in ways.values():
        way()
    console = Console()
    found = in_turns(ways, rounds=wanted.rounds, console=console, told=lambda ms: f"{ms:.0f} ms")
    medians = {name: statistics.median(samples) for name, samples in found.items()}
    alone_ms, *_ = medians.values()
    table = table_of("Processor time of imports, medians in ms", "import", "all", "above Python's")
    for name, ms in medians.items():
        table.add_row(name, f"{ms:.0f}", f"{ms - alone_ms:.0f}")
    console.print(table)
    console.print(facts(None))


if __name__ == "__main__":
    main()
