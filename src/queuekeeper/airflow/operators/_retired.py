"""Old names of operators, which the next release removes; ``StoreCallOperator`` replaces them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from inspect import Parameter, Signature
from typing import Any
from warnings import warn

from queuekeeper.airflow.operators._store_calls import call_of
from queuekeeper.airflow.operators.store_call import StoreCallOperator

CALLS = {
    "InspectSessionOperator": "sessions.inspect",
    "PeekSessionOperator": "sessions.peek",
    "PurgeSessionOperator": "sessions.purge_session",
    "ExportSessionOperator": "sessions.export_session",
    "ImportSessionOperator": "sessions.import_session",
    "InspectCompactedQueueOperator": "compacted.inspect",
    "AppendToCompactedQueueOperator": "compacted.append",
    "RewindCompactedQueueOperator": "compacted.rewind",
    "ConfigureCompactedQueueOperator": "compacted.configure",
    "PurgeCompactedQueueOperator": "compacted.purge",
    "DropCompactedQueueOperator": "compacted.drop",
    "VerifyCompactedQueueOperator": "compacted.verify",
    "RepairCompactedQueueOperator": "compacted.repair",
    "InspectFanoutQueueOperator": "fanout.inspect",
    "PublishToFanoutQueueOperator": "fanout.publish",
    "RegisterFanoutConsumerOperator": "fanout.register",
    "UnregisterFanoutConsumerOperator": "fanout.unregister",
    "RetryFanoutDeadLettersOperator": "fanout.retry_dead",
    "PurgeFanoutDeadLettersOperator": "fanout.purge_dead",
    "PauseFanoutQueueOperator": "fanout.pause",
    "ResumeFanoutQueueOperator": "fanout.resume",
    "VerifyFanoutQueueOperator": "fanout.verify",
}
"""Old name -> call that it makes. Arguments are those of the call; only ``queue_name`` is now ``queue``."""

RENAMED = {"queue": "queue_name"}


def names_of(module: str) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a module, which resolves its old names.

    :param module: name of the module, such as ``queuekeeper.airflow.operators.fanout``.
    """

    def found(name: str) -> Any:
        if not CALLS.get(name, "").startswith(module.rpartition(".")[-1] + "."):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return _operator(module, name)

    return found


@cache
def _operator(module: str, name: str) -> type[StoreCallOperator]:
    call = CALLS[name]
    old = {RENAMED.get(argument, argument): argument for argument in call_of(call).arguments}

    def __init__(self: StoreCallOperator, **kwargs: Any) -> None:  # noqa: N807 - of the class below
        arguments = {argument: kwargs.pop(known) for known, argument in old.items() if known in kwargs}
        warn(
            f"{name} is removed by the next release: write StoreCallOperator(call={call!r}, arguments={arguments!r}) "
            f"of {StoreCallOperator.__module__}",
            DeprecationWarning,
            stacklevel=3,
        )
        StoreCallOperator.__init__(self, call=call, arguments=arguments, **kwargs)

    # Airflow reads the signature for mapped tasks and for default arguments.
    own = [Parameter(each, Parameter.KEYWORD_ONLY, default=None) for each in old]
    __init__.__signature__ = Signature(  # type: ignore[attr-defined]
        [Parameter("self", Parameter.POSITIONAL_OR_KEYWORD), *own, Parameter("kwargs", Parameter.VAR_KEYWORD)]
    )
    words = f"``StoreCallOperator(call={call!r})``, by its old name."
    return type(name, (StoreCallOperator,), {"__init__": __init__, "__doc__": words, "__module__": module})
