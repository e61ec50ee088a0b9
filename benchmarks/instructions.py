"""Count the instructions that a server takes for saving a message, ours and TBMQ's design beside each other.

``python benchmarks/instructions.py --servers valkey redis --payload-bytes 64 256 1024 --per-client 1 10``

Each count is of a server of its own under valgrind's callgrind, which has to be installed; the calls are those that
``benchmarks/online.py`` pipes. Instructions do not depend on what else the machine does, but counts of one script
differ by up to 3 %: hash functions and skip lists draw random numbers.
"""

from __future__ import annotations

import argparse
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from online import SAVING, made_beforehand, pipe_into

from queuekeeper.embedded import RedisServer
from queuekeeper.embedded.process import ProcessRecord
from queuekeeper.embedded.redis_server import Flavour, binary_path
from queuekeeper.errors import RefusedError

SESSIONS = 100


class CountedServer(RedisServer):
    """A server whose instructions are counted while somebody asks for it."""

    def _prepare(self) -> Callable[[int], ProcessRecord]:
        super()._prepare()
        program = self.directory / "counted"
        program.write_text(
            "#!/bin/sh\nexec valgrind --tool=callgrind --instr-atstart=no "
            f"--callgrind-out-file='{self.directory}/counts' '{binary_path(self._flavour)}' \"$@\"\n",
            "utf-8",
        )
        program.chmod(0o700)
        return lambda port: self._start_on(port, program)

    def count(self, state: str) -> None:
        """Begin to count, or stop: ``on`` or ``off``."""
        subprocess.run(["callgrind_control", "-i", state, str(self.pid)], check=True, capture_output=True)

    @property
    def instructions(self) -> int:
        """What a server that has ended has counted."""
        counts = (self.directory / "counts").read_text("utf-8")
        return sum(map(int, re.findall(r"^totals: (\d+)", counts, re.MULTILINE)))


def counted(flavour: Flavour, way: str, *, payload_bytes: int, per_client: int, calls: int) -> float:
    """Return the instructions per message.

    :param way: ``limit`` for ours in the layout of TBMQ, ``packed`` for the packed one, ``tbmq`` for TBMQ's design.
    """
    home = Path(tempfile.mkdtemp(prefix="queuekeeper-benchmark-"))
    server = CountedServer(home / flavour, flavour=flavour, config={"appendonly": "no"}, die_with_parent=True)
    known, known_calls, packed, count = made_beforehand(
        way, sessions=SESSIONS, messages=calls * per_client, payload_bytes=payload_bytes, per_client=per_client
    )
    try:
        server.start()
        with server.client() as client:
            for source in SAVING.values():
                client.script_load(source)
        pipe_into(server.url, known, known_calls)
        server.count("on")
        pipe_into(server.url, packed, count)
        server.count("off")
        server.stop()
        return server.instructions / (count * per_client)
    finally:
        server.erase()
        shutil.rmtree(home, ignore_errors=True)


def main(words: Sequence[str] | None = None) -> int:
    """Count and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", choices=("valkey", "redis"), nargs="+", default=["valkey"])
    parser.add_argument("--payload-bytes", type=int, nargs="+", default=[64, 256, 1_024])
    parser.add_argument("--per-client", type=int, nargs="+", default=[1, 10], help="messages per call")
    parser.add_argument("--calls", type=int, default=2_000)
    parser.add_argument("--rounds", type=int, default=3, help="servers for each count, of which the median is shown")
    arguments = parser.parse_args(words)
    if min(arguments.calls, arguments.rounds, *arguments.payload_bytes, *arguments.per_client) < 1:
        parser.error("counts must be 1 or more")
    if shutil.which("valgrind") is None or shutil.which("callgrind_control") is None:
        print(
            "error: valgrind is not installed: it counts the instructions (apt-get install valgrind)", file=sys.stderr
        )
        return RefusedError.exit_code
    for flavour in arguments.servers:
        for per_client in arguments.per_client:
            for size in arguments.payload_bytes:
                ours, packed, tbmq = (
                    statistics.median(
                        counted(flavour, way, payload_bytes=size, per_client=per_client, calls=arguments.calls)
                        for _ in range(arguments.rounds)
                    )
                    for way in ("limit", "packed", "tbmq")
                )
                print(
                    f"{flavour}, {per_client} per call, {size} B: ours {ours:,.0f}, packed {packed:,.0f}, "
                    f"TBMQ's design {tbmq:,.0f} instructions per message: {ours / tbmq:.3f} and {packed / tbmq:.3f}",
                    flush=True,
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
