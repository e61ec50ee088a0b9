"""Steps of a job get smaller while answers are slow, and grow back."""

from __future__ import annotations

import pytest

from queuekeeper.jobs.pace import Breaker

pytestmark = pytest.mark.unit


class Server:
    """Answers a call after so many seconds, by a clock of its own."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.said: list[str] = []
        self.breaker = Breaker(self.said.append, now_s=lambda: self.now_s)

    def answer(self, *took_s: float) -> int:
        """Answer calls and return how many keys the next step takes of 1,000."""
        for each in took_s:
            self.breaker.sent()
            self.now_s += each
            self.breaker.answered()
        return self.breaker.size(1_000)


def test_step_is_halved_after_three_slow_answers_in_a_row_and_says_so() -> None:
    server = Server()
    assert server.answer(2.0, 2.0, 0.1, 2.0, 2.0) == 1_000
    assert server.answer(2.0) == 500
    assert server.answer(2.0, 2.0, 2.0) == 250
    assert server.said == [
        "three answers in a row took longer than 1 s: steps are 1/2 from now",
        "three answers in a row took longer than 1 s: steps are 1/4 from now",
    ]


def test_step_never_gets_empty_and_grows_back_once_answers_are_quick() -> None:
    server = Server()
    server.answer(*[2.0] * 100)
    assert (server.breaker.size(1_000), server.breaker.size(3)) == (15, 1)
    assert server.answer(*[0.01] * 19) == 15
    assert server.answer(0.01) == 31
    server.said.clear()
    assert server.answer(*[0.01] * 60) == 250
    assert server.said == []
    assert server.answer(*[0.01] * 40) == 1_000
    assert server.said == ["answers are quick again: steps have their full size"]


def test_waiting_for_the_rate_is_not_taken_for_a_slow_answer() -> None:
    server = Server()
    server.answer(0.01)
    for _ in range(10):
        # Between an answer and the next call the job waits.
        server.now_s += 60.0
        assert server.answer(0.01) == 1_000
