"""Handlers of every store: the function, its time limit, its middleware, and decorators."""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from contextvars import copy_context
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, ClassVar, Generic, ParamSpec, Protocol, TypeVar, get_type_hints

from queuekeeper.checks import check_fields, check_integer, shown
from queuekeeper.errors import RefusedError, UsageError
from queuekeeper.operation import (
    finished,
    is_coroutine_function,
    is_generator_function,
    refuse_generator,
    refuse_unfinished,
)
from queuekeeper.service.blocking import Threads
from queuekeeper.service.limits import limited, time_is_up

M = TypeVar("M")
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
W = TypeVar("W")
H = TypeVar("H", bound="Handler[Any]")
W_contra = TypeVar("W_contra", contravariant=True)
R_contra = TypeVar("R_contra", contravariant=True)
H_co = TypeVar("H_co", bound="Handler[Any]", covariant=True)

LONGEST_MS = 10 * 365 * 86_400_000
"""Largest time limit, and largest pause."""

_NOBODY = nullcontext()

_log = logging.getLogger(__name__)


class Rules(Protocol):
    """Rules that every store has."""

    @property
    def time_limit_ms(self) -> int | None:
        """Time limit of a handler in milliseconds; ``None`` sets no limit."""

    def is_final(self, message: Any, error: Exception) -> bool:
        """Whether a message becomes a dead letter after the handler has failed with this error."""


def check_time_limit(rules: Rules) -> None:
    """Refuse rules with a time limit that is not valid.

    :raises UsageError: when it is not; the message names parameter, value and rule.
    """
    if rules.time_limit_ms is not None:
        check_integer("time_limit_ms", rules.time_limit_ms, 1, LONGEST_MS)


def check_dead_on(rules: Any) -> None:
    """Refuse rules whose ``dead_on`` holds anything but exceptions.

    :raises UsageError: when it does; the message names parameter, value and rule.
    """
    check_fields(rules, "dead_on")
    for one in rules.dead_on:
        if not issubclass(one, Exception):
            raise UsageError(f"dead_on holds {one!r}: it must be a tuple of classes of exceptions")


def is_one_of(error: BaseException, kinds: tuple[type[Exception], ...]) -> bool:
    """Return whether an error is of one of these kinds, or a group, as of a ``TaskGroup``, holds one that is."""
    if isinstance(error, kinds):
        return True
    return isinstance(error, BaseExceptionGroup) and any(is_one_of(each, kinds) for each in error.exceptions)


def reason_of(error: BaseException) -> str:
    """Return the reason why a handler has failed, as a text."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


@dataclass(frozen=True, kw_only=True)
class Handler(Generic[M]):
    """A function with the rules for its failures; it can be called like the function.

    :param work: a function or another callable; for asyncio it returns an awaitable.
    :param rules: rules for its failures; the store's defaults when absent.
    :raises UsageError: naming parameter, value and rule.
    :cvar of: name of its store in messages.
    :cvar store: package of its store.
    """

    of: ClassVar[str]
    store: ClassVar[str]

    work: Callable[[M], Any]
    rules: Any

    def __post_init__(self) -> None:
        check_fields(self, "work", "rules")
        _check_work(self.work)

    def __call__(self, message: M) -> Any:
        """Work."""
        return self.work(message)


def _check_work(work: Callable[..., Any]) -> None:
    """Refuse a function that would fail on every message, or do nothing and lose it.

    :raises UsageError: saying what is wrong with it.
    """
    if is_generator_function(work):
        raise UsageError("work is a generator function: its code would never run; write it without yield")
    try:
        # A decorator may give a function more than the message, and still be named as that function.
        signature = inspect.signature(work, follow_wrapped=False)
    except (TypeError, ValueError):
        # Functions written in C need not show theirs.
        return
    try:
        signature.bind(object())
    except TypeError as error:
        raise UsageError(f"work cannot be called with a message alone: {error}") from None


def handler_of(kind: type[H], work: Callable[[Any], Any], *, name: str = "work") -> H:
    """Return a store's handler; a plain function gets the default rules.

    :param name: name of the argument in the refusal.
    :raises UsageError: when it is a handler of another store, whose rules do not apply here.
    """
    if isinstance(work, kind):
        return work
    if isinstance(work, Handler):
        raise UsageError(
            f"{name} is a handler of {work.of}, and its rules apply to `{work.store} work` only: {work.rules}; "
            f"name a function without {work.store}.handler, or one with {kind.store}.handler"
        )
    # The handler of each store has default rules.
    return kind(work=work)  # type: ignore[call-arg]


def refuse_coroutine_function(handler: Handler[Any], *, take: str) -> None:
    """Refuse a handler that is a coroutine function where nobody awaits it.

    :param take: class of the consumer that awaits it.
    :raises UsageError: when it is one; the message says what to take instead.
    """
    if is_coroutine_function(handler.work):
        raise UsageError(f"the handler is a coroutine function: it would never run here, take {take}")


class Makes(Protocol[W_contra, R_contra, H_co]):
    """A store's class of handlers."""

    def __call__(self, *, work: W_contra, rules: R_contra) -> H_co:
        """Make a handler from a function and its rules."""


def with_rules(rules: Callable[P, R], kind: Makes[W, R, H], *, example: str) -> Callable[P, Callable[[W], H]]:
    """Return ``handler`` with the signature of a store's rules, which editors and type checkers can complete.

    :param example: arguments in the example of the docstring.
    """

    def handler(*args: P.args, **kwargs: P.kwargs) -> Callable[[W], H]:
        known = inspect.signature(rules).parameters
        if args:
            raise UsageError(
                f"handler got {shown(args[0])}: it must get its rules by name, such as @handler({example}), or none of "
                "them: @handler()"
            )
        for name in kwargs:
            if name not in known:
                nearest = get_close_matches(name, known, n=1)
                hint = f"did you mean {nearest[0]!r}?" if nearest else f"there are {', '.join(known)}"
                raise UsageError(f"handler has no rule {name!r}: {hint}")
        found = rules(*args, **kwargs)
        return lambda work: kind(work=work, rules=found)

    work_hint = get_type_hints(kind)["work"]
    handler.__signature__ = inspect.signature(rules).replace(  # type: ignore[attr-defined]
        return_annotation=Callable[[work_hint], kind]
    )
    handler.__module__ = kind.__module__
    handler.__doc__ = (
        f"Make a function a handler: ``@handler({example})``.\n\n"
        "The arguments are those of :class:`RetryRules`.\n\n"
        ":raises UsageError: when a value or name is not valid; the message names the rule, or the nearest name."
    )
    return handler


class Middleware(Generic[M]):
    """Observes or wraps handlers; its methods are called in the thread or task of the handler.

    Exceptions of ``before``, ``after`` and ``error`` are logged and have no other effect.
    """

    def around(self, message: M, /) -> AbstractContextManager[Any]:
        """Return a context manager around the handler, such as a trace, a lock or a database transaction.

        If it raises when it is entered, the attempt fails before the handler begins. If the handler fails, it gets the
        error, and may raise another error or suppress this one, so that the message counts as done. The first
        middleware is the outermost. The time limit covers only the handler. If a function in a thread returns an
        awaitable, the context manager may be left in another thread than it was entered in.
        """
        return nullcontext()

    def before(self, message: M, /) -> None:
        """Observe that a handler begins."""

    def after(self, message: M, /, *, duration_s: float) -> None:
        """Observe that a handler has succeeded."""

    def error(self, message: M, error: Exception, /, *, duration_s: float, is_final: bool) -> None:
        """Observe that a handler has failed.

        :param is_final: whether the message becomes a dead letter.
        """


def check_middleware(middleware: Sequence[Middleware[Any]]) -> None:
    """Refuse middleware that would never run, or would fail every attempt.

    :raises UsageError: naming its class and method.
    """
    for one in middleware:
        kind = type(one).__name__
        for name in ("before", "after", "error"):
            if is_coroutine_function(getattr(one, name)):
                raise UsageError(f"{name} of middleware {kind} is a coroutine function, which nobody awaits")
        if inspect.isgeneratorfunction(one.around):
            raise UsageError(f"around of middleware {kind} is a generator function: put @contextmanager over it")
        inner = inspect.unwrap(one.around)
        if inspect.isasyncgenfunction(inner) or is_coroutine_function(inner):
            raise UsageError(f"around of middleware {kind} is asynchronous: it must return a context manager")


def _exited(error: SystemExit) -> RefusedError:
    """Return the error of a handler that would end its process, and with it the work of all others."""
    # Anything else may be a part of the message.
    code = error.code if isinstance(error.code, int) else ""
    return RefusedError(f"the handler has called sys.exit({code})")


class Calls(Generic[M]):
    """Calls a handler within its time limit, inside its middleware, and reports the outcome to the middleware.

    :param now_s: monotonic clock in seconds.
    """

    def __init__(
        self,
        work: Callable[[M], Any],
        rules: Rules,
        *,
        middleware: Sequence[Middleware[M]] = (),
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._work = work
        self._rules = rules
        self._middleware = middleware
        self._now_s = now_s

    def _around(self, message: M) -> AbstractContextManager[Any]:
        """Return the context manager of a call, which costs almost nothing without middleware."""
        return self._watched(message) if self._middleware else _NOBODY

    @contextmanager
    def _watched(self, message: M) -> Iterator[None]:
        self._tell(lambda one: one.before(message))
        began_s = self._now_s()
        try:
            with ExitStack() as stack:
                for one in self._middleware:
                    stack.enter_context(one.around(message))
                yield
        except Exception as error:
            duration_s = self._now_s() - began_s
            # Python deletes the name of an exception after its except clause.
            raised = error
            is_final = self._rules.is_final(message, error)
            self._tell(lambda one: one.error(message, raised, duration_s=duration_s, is_final=is_final))
            raise
        duration_s = self._now_s() - began_s
        self._tell(lambda one: one.after(message, duration_s=duration_s))

    def _tell(self, hook: Callable[[Middleware[M]], None]) -> None:
        for one in self._middleware:
            try:
                hook(one)
            except Exception:
                _log.exception("middleware %r failed", one)

    @property
    def _limit_s(self) -> float | None:
        limit_ms = self._rules.time_limit_ms
        return None if limit_ms is None else limit_ms / 1_000

    def _begun(self, message: M) -> Any:
        """Return the result of the handler, which may be to be awaited."""
        try:
            return self._work(message)
        except SystemExit as error:
            raise _exited(error) from error

    async def _finish(self, result: Any, *, used_s: float = 0.0) -> None:
        """Await what the handler has returned, within its time limit.

        :param used_s: seconds that the handler has used until it returned.
        """
        limit_s = self._limit_s
        try:
            async with asyncio.timeout(None if limit_s is None else limit_s - used_s) as limit:
                await finished(result)
        except SystemExit as error:
            raise _exited(error) from error
        except TimeoutError as error:
            if limit_s is None or not limit.expired():
                raise
            raise time_is_up(limit_s) from error


class BlockingCalls(Calls[M]):
    """Calls in the thread of the caller."""

    def answer(self, message: M) -> None:
        """Call the handler."""
        with self._around(message):
            refuse_unfinished(self._call(message))

    def _call(self, message: M) -> Any:
        """Return the result of the handler within its time limit."""
        limit_s = self._limit_s
        return self._begun(message) if limit_s is None else limited(self._begun, message, limit_s=limit_s)


class AsyncCalls(Calls[M]):
    """Calls in the event loop."""

    async def answer(self, message: M) -> None:
        """Call the handler."""
        with self._around(message):
            await self._finish(self._begun(message))


class LoopThreadCalls(BlockingCalls[M]):
    """Calls in a thread of its own beside an event loop, which awaits the result of the handler if it is awaitable.

    The loop's pool would have too few threads for many handlers, and keep the process from ending while one works.
    """

    _threads: Threads | None = None

    async def answer_in_thread(self, message: M) -> None:
        """Call the handler in the thread, which works on one message at a time."""
        loop, context = asyncio.get_running_loop(), copy_context()
        around, result, used_s = await self._in_thread(context.run, self._begin, message)
        if result is None:
            return
        try:
            await loop.create_task(self._finish(result, used_s=used_s), context=context)
        except BaseException as error:
            if not await self._in_thread(context.run, around.__exit__, type(error), error, error.__traceback__):
                raise
        else:
            await self._in_thread(context.run, around.__exit__, None, None, None)

    def end(self) -> None:
        """Let the thread end after its present work, and do not wait for that."""
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.end(wait=False)

    async def _in_thread(self, work: Callable[..., T], *given: Any) -> T:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[BaseException | None] = loop.create_future()
        results: list[T] = []

        def settle(error: BaseException | None) -> None:
            if not ended.done():
                ended.set_result(error)

        def call() -> None:
            failure: BaseException | None = None
            try:
                results.append(work(*given))
            except BaseException as error:
                failure = error
            # If the loop has ended, nobody waits for the result.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(settle, failure)

        if self._threads is None:
            self._threads = Threads(1, name="queuekeeper-handler")
        self._threads.begin(call)
        failure = await ended
        if failure is not None:
            raise failure
        return results[0]

    def _begin(self, message: M) -> tuple[ExitStack, Any, float]:
        """Return the contexts to leave at the end, the awaitable of the handler, if any, and the seconds used."""
        with ExitStack() as stack:
            stack.enter_context(self._around(message))
            began_s = self._now_s()
            result = self._call(message)
            if inspect.isawaitable(result):
                return stack.pop_all(), result, self._now_s() - began_s
            refuse_generator(result)
        return stack, None, 0.0
