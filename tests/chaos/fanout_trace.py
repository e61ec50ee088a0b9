"""What processes have written down of a fan-out queue, as a trace that ``proofs/TraceFanoutLog.tla`` replays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any

from scripts import prove
from tests.chaos.fanout_load import ORDERED
from tests.chaos.trace_checker import Line, Stuck, Trace, check
from tests.chaos.trace_lines import LATE_S, Asked, lanes_of, read_calls, several

_MANY = "1000000"
_MOST_ENDED = 20
"""So many leases a claim may have ended whose reply is lost: four of each process, also of those that were killed."""

_READ = {"register", "unregister", "list_consumers", "inspect", "inspect_consumer", "publish", "claim"}
_OF_LEASES = {"ack", "extend", "return_claimed"}


class FanoutTrace:
    """The trace of the one queue that the processes of a folder have used.

    :param folder: of the files that :mod:`trace_recorder` has written.
    """

    def __init__(self, folder: Path) -> None:
        self._processes = [list(read_calls(path)) for path in sorted(folder.glob("steps-*.jsonl"))]
        self._calls = sorted((each for calls in self._processes for each in calls), key=lambda each: each.from_s)
        claims = [each for each in self._calls if each.what == "claim"]
        self._consumers = {each.facts["token"]: each.facts["consumer"] for each in claims}
        told = [(each, _now_ms(each)) for each in claims if not each.error]
        # TLC's numbers are small.
        self._first_ms = min(now_ms for _, now_ms in told) - 1_000 * 60
        self._ahead_ms = min(now_ms - 1_000 * each.from_s for each, now_ms in told)
        self._places = self._give_places()

    def lanes(self) -> Trace:
        """Return the trace."""
        lines = [[line for each in calls for line in self._lines(each)] for calls in self._processes]
        return [lane for process in lines for lane in lanes_of(process)]

    def replay(self, traces: Mapping[str, Trace]) -> list[Stuck]:
        """Replay traces; return those that the model does not allow."""
        names = {each.facts["consumer"] for each in self._calls if each.what == "register"}
        published = sum(_count(each) for each in self._calls if each.what == "publish")
        constants = {
            "Consumers": "{" + ", ".join(f'"{name}"' for name in sorted(names)) + "}",
            "Ordered": f'{{"{ORDERED}"}}',
            "Workers": "{" + ", ".join(map(str, range(max(self._places.values()) + 1))) + "}",
            "Messages": str(published),
            "Deaths": _MANY,
            "Lapses": _MANY,
        }
        invariants = prove.models()["FanoutLog"]["invariants"]
        return check("FanoutLog", traces, constants=constants, invariants=invariants)

    def _give_places(self) -> dict[tuple[str, int], int]:
        """Return the model's workers by token and message; one is free once nobody speaks of its message any more."""
        ends_s: dict[tuple[str, int], float] = {}
        for each in self._calls:
            ids: Sequence[int] = ()
            if each.what == "claim" and not each.error:
                ids = [int(message["id"]) for message in each.reply["messages"]]
            elif each.what in _OF_LEASES:
                ids = each.facts["ids"]
            until_s = each.from_s + LATE_S if each.until_s == inf else each.until_s
            for number in ids:
                at = (each.facts["token"], number)
                ends_s[at] = max(ends_s.get(at, 0.0), until_s)
        free_from_s: list[float] = []
        places: dict[tuple[str, int], int] = {}
        for each in self._calls:
            if each.what == "claim" and not each.error:
                for message in each.reply["messages"]:
                    at = (each.facts["token"], int(message["id"]))
                    place = next((n for n, free_s in enumerate(free_from_s) if free_s < each.from_s), len(free_from_s))
                    free_from_s[place : place + 1] = [ends_s[at]]
                    # The first one is for claims whose reply is lost.
                    places[at] = place + 1
        return places

    def _lines(self, asked: Asked) -> Iterator[Line]:
        if asked.what in _OF_LEASES:
            parts = list(self._of_leases(asked))
        elif asked.what in _READ and (asked.is_lost or not asked.error or asked.error == "UnknownConsumer"):
            parts = list(getattr(self, f"_{asked.what}")(asked))
        else:
            return
        yield from several(asked, parts, lost=asked.is_lost)

    def _register(self, asked: Asked) -> Iterator[dict[str, Any]]:
        reply: dict[str, Any] = {"created": 1, "next_id": 0} if asked.is_lost else asked.reply
        yield {
            "do": "register",
            "consumer": asked.facts["consumer"],
            "new": reply["created"] == 1,
            "next": reply["next_id"],
        }

    def _unregister(self, asked: Asked) -> Iterator[dict[str, Any]]:
        reply = {"released": 0, "freed": 0} if asked.error else asked.reply
        yield {
            "do": "unregister",
            "consumer": asked.facts["consumer"],
            "new": asked.is_lost or not asked.error,
            "released": reply["released"],
            "freed": reply["freed"],
        }

    def _list_consumers(self, asked: Asked) -> Iterator[dict[str, Any]]:
        if not asked.is_lost:
            members = {(each["consumer"], each["cursor"]) for each in asked.reply["members"]}
            yield {"do": "members", "members": members, "now": self._at(asked.reply["now_ms"])}

    def _inspect_consumer(self, asked: Asked) -> Iterator[dict[str, Any]]:
        if not asked.error:
            yield {
                "do": "inspect",
                "consumer": asked.facts["consumer"],
                "leased": asked.reply["leased"],
                "unread": asked.reply["in_log"],
                "ready": asked.reply["lanes"][0]["length"],
            }

    def _inspect(self, asked: Asked) -> Iterator[dict[str, Any]]:
        if not asked.is_lost:
            yield {"do": "count", "stored": asked.reply["messages"]}

    def _publish(self, asked: Asked) -> Iterator[dict[str, Any]]:
        told: list[dict[str, Any]] = (
            [{"id": "0", "consumers": 0}] * _count(asked) if asked.is_lost else asked.reply["messages"]
        )
        for each in told:
            yield {"do": "publish", "number": int(each["id"]), "consumers": each["consumers"]}

    def _claim(self, asked: Asked) -> Iterator[dict[str, Any]]:
        consumer = asked.facts["consumer"]
        if asked.is_lost:
            until_s = asked.from_s + LATE_S if asked.until_s == inf else asked.until_s
            facts = {"consumer": consumer, "now": self._at(int(1_000 * until_s + self._ahead_ms) + 1)}
            reply: dict[str, Any] = {"stalled": _MOST_ENDED, "messages": []}
        else:
            facts = {"consumer": consumer, "now": self._at(_now_ms(asked))}
            reply = asked.reply
        for number in range(reply["stalled"]):
            yield facts | {"do": "end", "first": number == 0}
        if consumer == ORDERED:
            yield facts | {"do": "pull"}
        if asked.is_lost:
            for _ in range(1 if consumer == ORDERED else asked.facts["count"]):
                yield facts | {"do": "claim", "number": 0, "worker": 0, "deadline": 0}
            if consumer != ORDERED:
                yield facts | {"do": "pull rest"}
        else:
            yield from self._claimed(asked, facts)

    def _claimed(self, asked: Asked, facts: dict[str, Any]) -> Iterator[dict[str, Any]]:
        reply = asked.reply
        for message in reply["messages"]:
            number = int(message["id"])
            place = self._places[asked.facts["token"], number]
            deadline = self._at(int(reply["deadline_ms"]))
            yield facts | {"do": "claim", "number": number, "worker": place, "deadline": deadline}
        if asked.facts["consumer"] != ORDERED:
            yield facts | {"do": "pull rest"}
        # A message that is skipped or set aside is one more than the model has.
        odd = reply["skipped"] + reply["dead"]
        yield facts | {"do": "claimed", "logged": reply["logged"] + odd, "is_last": reply["more"] == 0}

    def _of_leases(self, asked: Asked) -> Iterator[dict[str, Any]]:
        token, ids = asked.facts["token"], sorted(asked.facts["ids"], reverse=True)
        facts = {"do": asked.what.partition("_")[0], "consumer": self._consumers[token]}
        stale = set() if asked.is_lost else set(map(int, asked.reply["stale"]))
        if asked.what == "extend":
            deadline_ms = 0 if asked.is_lost else int(asked.reply["deadline_ms"])
            facts |= {"deadline": self._at(deadline_ms) if deadline_ms else 0}
            facts |= {"now": self._at(deadline_ms - asked.facts["lease_ms"]) if deadline_ms else 0}
        for number in ids:
            yield facts | {"number": number, "worker": self._places[token, number], "ok": number not in stale}
        if asked.what == "ack" and not asked.is_lost:
            yield {"do": "acked", "numbers": set(ids) - stale, "freed": asked.reply["freed"]}

    def _at(self, instant_ms: int) -> int:
        return instant_ms - self._first_ms


def _now_ms(claim: Asked) -> int:
    return int(claim.reply["deadline_ms"]) - int(claim.facts["lease_ms"])


def _count(publish: Asked) -> int:
    """Return of how many messages a call tells."""
    facts: dict[str, Any] = publish.facts
    return (len(facts["values"]) - 2 * int(facts["consumers"])) // 6
