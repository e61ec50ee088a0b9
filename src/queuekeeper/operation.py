"""One written form of every operation, run by blocking or asyncio code; what is asked of a server is a step.

An operation is a generator. It yields a step, gets the server's answer in its place, and returns a result. Whatever
does the I/O knows nothing of sessions or events, and the operation nothing of sockets, so nothing is written twice.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import time
from collections.abc import Awaitable, Callable, Generator
from functools import wraps
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    NamedTuple,
    NoReturn,
    ParamSpec,
    TypeAlias,
    TypeVar,
    overload,
)

from queuekeeper.checks import Arguments, Wrong
from queuekeeper.errors import QueuekeeperError, UsageError
from queuekeeper.wording import article

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

Operation: TypeAlias = Generator[Any, Any, T]
"""Yields steps, receives answers, returns ``T``. An answer that is an exception is thrown into it."""


class Pause(NamedTuple):
    """Step: wait; the answer is none. Whoever carries the operation out sleeps."""

    seconds: float


class AnswersByQueues:
    """Carries out the steps of a producer or a consumer: it sleeps itself, and ``_queues`` answer what is theirs."""

    _queues: Any

    def answer(self, step: Any) -> Any:
        """Carry out a step."""
        if isinstance(step, Pause):
            time.sleep(step.seconds)
            return None
        return self._queues.answer(step)


class AsyncAnswersByQueues:
    """The same for asyncio."""

    _queues: Any

    async def answer(self, step: Any) -> Any:
        """Carry out a step."""
        if isinstance(step, Pause):
            return await asyncio.sleep(step.seconds)
        return await self._queues.answer(step)


def errors_name(*kinds: type[QueuekeeperError], **words: str) -> Callable[[type[T]], type[T]]:
    """Have the errors of a class of operations name what an operation is about.

    :param kinds: of the errors to whose text the names are added; the attributes of all others have them, too.
    :param words: what to call each argument in the text, such as ``queue="queue"``; its attribute is called like it.
    """

    def naming(form: Callable[..., Operation[Any]]) -> Callable[..., Operation[Any]]:
        @wraps(form)
        def named(*args: Any, **kwargs: Any) -> Operation[Any]:
            try:
                return (yield from form(*args, **kwargs))
            except QueuekeeperError as error:
                given = inspect.signature(form).bind(*args, **kwargs).arguments
                about = {argument: given[argument] for argument in words if given.get(argument) is not None}
                error.about(**about)
                if not isinstance(error, kinds):
                    raise
                names = ", ".join(f"{words[argument]} {value!r}" for argument, value in about.items())
                if not names or names in str(error):
                    raise
                raise error.reworded(f"{error} ({names})") from error

        return named

    def decorate(operations: type[T]) -> type[T]:
        # Those that it inherits, too; its bases stay as they are.
        forms = {name: form for kind in reversed(operations.__mro__) for name, form in vars(kind).items()}
        for name, form in forms.items():
            is_public = not name.startswith("_") and inspect.isgeneratorfunction(form)
            if is_public and words.keys() & inspect.signature(form).parameters.keys():
                setattr(operations, name, naming(form))
        return operations

    return decorate


def keeps(contract: Callable[..., Any]) -> Callable[[F], F]:
    """Mark what carries an operation of a contract out: its docstring is the contract's, and what it adds of its own.

    :param contract: the method of the contract, of which there are several implementations.
    """

    def decorate(form: F) -> F:
        texts = [inspect.cleandoc(text) for text in (contract.__doc__, form.__doc__) if text]
        if not texts:  # Python leaves all of them out when it is told to (-OO).
            return form
        words, fields = zip(*(_parted(text) for text in texts), strict=True)
        form.__doc__ = "\n\n".join(filter(None, [*words, "\n".join(filter(None, fields))]))
        return form

    return decorate


def _parted(docstring: str) -> tuple[str, str]:
    """Return the words of a docstring, and its fields."""
    fields = re.search(r"^:", docstring, re.MULTILINE)
    at = fields.start() if fields else len(docstring)
    return docstring[:at].strip(), docstring[at:].strip()


def _refuse(operation: Operation[Any], wrong: Wrong) -> NoReturn:
    """Refuse an operation with an argument of a wrong type, before anything is asked of a server.

    :raises UsageError: in the operation's own words, if it has any for this argument.
    """
    try:
        next(operation)
    except UsageError as error:
        if wrong.is_told_by(str(error)):
            raise
        raise UsageError(wrong.words) from None
    except Exception:
        raise UsageError(wrong.words) from None
    operation.close()
    raise UsageError(wrong.words)


def is_coroutine_function(work: Callable[..., Any]) -> bool:
    """Tell whether calling something gives what has to be awaited: a coroutine function, or an object that is one."""
    return inspect.iscoroutinefunction(work) or inspect.iscoroutinefunction(type(work).__call__)


def is_generator_function(work: Callable[..., Any]) -> bool:
    """Tell whether a call only makes a generator, also an asynchronous one, and runs none of the code."""
    return any(
        inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each) for each in (work, type(work).__call__)
    )


async def finished(result: Any) -> None:
    """Await what a handler has returned; one that has returned something else, as a plain function does, has worked.

    :raises UsageError: when it is a generator, whose code nobody runs.
    """
    if inspect.isawaitable(result):
        await result
    else:
        refuse_generator(result)


def refuse_unfinished(result: Any) -> None:
    """Refuse what a handler has returned where nobody awaits it: a coroutine or generator is work that is not done.

    :raises UsageError: saying what to take or write instead.
    """
    if inspect.isawaitable(result):
        made = "coroutine"
        if inspect.iscoroutine(result):
            result.close()
        else:
            made = type(result).__name__
        raise UsageError(f"the handler has made {article(made)} that nobody awaits here: take the consumer for asyncio")
    refuse_generator(result)


def refuse_generator(result: Any) -> None:
    """Refuse a generator, whose code nobody runs.

    :raises UsageError: when the handler has returned one.
    """
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        raise UsageError("the handler has returned a generator, whose code has not run: go through it in the handler")


def _show_result(method: Callable[..., Any], form: Callable[..., Operation[Any]]) -> None:
    """Have ``help()`` and editors show what the method returns: the result of the operation, not the operation."""
    signature = inspect.signature(form)
    returned = signature.return_annotation
    if isinstance(returned, str) and (match := re.fullmatch(r"Operation\[(.+)\]", returned)):
        returned = match[1]
        method.__annotations__ = {**form.__annotations__, "return": returned}
    method.__signature__ = signature.replace(return_annotation=returned)  # type: ignore[attr-defined]


def mapped(
    operation: Operation[T], form: Callable[[Any], Any] = lambda step: step, *, answer: Any = None
) -> Operation[T]:
    """Run an operation within another one, whose driver gets each step in the form that it needs.

    :param form: makes of a step the one that the driver gets.
    :param answer: to the first step, when the operation has been asked for it before.
    """
    try:
        step = operation.send(answer)
        while True:
            try:
                answer = yield form(step)
            except Exception as error:
                step = operation.throw(error)
            else:
                step = operation.send(answer)
    except StopIteration as end:
        result: T = end.value
        return result


def blocking(form: Callable[Concatenate[Any, P], Operation[T]]) -> Callable[Concatenate[Any, P], T]:
    """Return the method of a blocking object, such as a store, that runs an operation to its end.

    The object holds the operations as ``operations`` and has a method ``answer(step)``.

    :param form: method of the class of operations.
    """
    arguments = Arguments(form, of_method=True)

    @wraps(form)
    def method(store: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        operation = form(store.operations, *args, **kwargs)
        if not arguments.fit(*args, **kwargs):
            _refuse(operation, arguments.wrong(args, kwargs))
        try:
            step = next(operation)
            while True:
                try:
                    answer = store.answer(step)
                except Exception as error:
                    step = operation.throw(error)
                else:
                    step = operation.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result

    _show_result(method, form)
    return method


def awaited(form: Callable[Concatenate[Any, P], Operation[T]]) -> Callable[Concatenate[Any, P], Awaitable[T]]:
    """Return the coroutine method of an asyncio object; there ``answer(step)`` is a coroutine method too.

    :param form: method of the class of operations.
    """
    arguments = Arguments(form, of_method=True)

    @wraps(form)
    async def method(store: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        operation = form(store.operations, *args, **kwargs)
        if not arguments.fit(*args, **kwargs):
            _refuse(operation, arguments.wrong(args, kwargs))
        try:
            step = next(operation)
            while True:
                try:
                    answer = await store.answer(step)
                except Exception as error:
                    step = operation.throw(error)
                else:
                    step = operation.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result

    _show_result(method, form)
    return method


class Both(Generic[P, T]):
    """An operation as a method of the blocking class and of the asyncio one; each makes its own of it.

    :param form: method of the class of operations.
    """

    def __init__(self, form: Callable[Concatenate[Any, P], Operation[T]]) -> None:
        self.form = form

    if TYPE_CHECKING:

        @overload
        def __get__(self, store: Blocking, kind: type[Any]) -> Callable[P, T]: ...

        @overload
        def __get__(self, store: Awaiting, kind: type[Any]) -> Callable[P, Awaitable[T]]: ...

        @overload
        def __get__(self, store: None, kind: type[Any]) -> Callable[Concatenate[Any, P], Any]: ...

        def __get__(self, store: Any, kind: type[Any]) -> Any: ...


class Blocking:
    """Base of blocking classes, whose objects hold operations and a method ``answer(step)``; see :func:`blocking`."""

    def __init_subclass__(cls) -> None:
        """Make methods of the operations that a class of this form shares with its twin."""
        super().__init_subclass__()
        for name, form in _shared(cls):
            setattr(cls, name, blocking(form))


class Awaiting:
    """The same for asyncio; see :func:`awaited`."""

    def __init_subclass__(cls) -> None:
        """Make coroutine methods of the operations that a class of this form shares with its twin."""
        super().__init_subclass__()
        for name, form in _shared(cls):
            setattr(cls, name, awaited(form))


def _shared(kind: type[Any]) -> list[tuple[str, Callable[..., Operation[Any]]]]:
    """Return the operations of which a class has to make methods yet."""
    members = {name: member for base in reversed(kind.__mro__) for name, member in vars(base).items()}
    return [(name, member.form) for name, member in members.items() if isinstance(member, Both)]
