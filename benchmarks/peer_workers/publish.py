"""Publish messages by one system and print what it took: ``publish.py MODULE FIRST COUNT SIZE BY``.

With a count of 0, make the tables that the system needs.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import sys
import time
from itertools import islice

from peer_workers.work import body_of


def main() -> None:
    """Publish, ``BY`` messages with each call."""
    name, *numbers = sys.argv[1:]
    first, count, size, by = map(int, numbers)
    module = importlib.import_module(f"peer_workers.{name}")
    bodies = (body_of(number, size) for number in range(first, first + count))
    pages = [list(islice(bodies, by)) for _ in range(0, count, by)]
    began_s, used_s = time.perf_counter(), time.process_time()
    publishing = module.publish(pages) if count else module.make_tables()
    if inspect.iscoroutine(publishing):
        asyncio.run(publishing)
    print(json.dumps({"seconds": time.perf_counter() - began_s, "cpu_s": time.process_time() - used_s}))


if __name__ == "__main__":
    main()
