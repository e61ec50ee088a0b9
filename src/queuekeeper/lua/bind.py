"""Scripts as functions that take keys and arguments by the names in their headers, and read replies by theirs.

``scripts.fanout.claim(keys, own, consumer="billing", count=10, ...)`` is a call of ``lua/fanout/claim.lua``: keys come
from the objects that hold the names of a queue's or session's keys, everything else is named. A name that the header
does not have, or one that is missing, is a ``TypeError``; ``tests/unit/test_bound_scripts.py`` finds it without a call.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Protocol

from queuekeeper.errors import ScriptError
from queuekeeper.lua.bundle import Script, load, names
from queuekeeper.lua.call import Call
from queuekeeper.lua.header import Form, Parameter


class Bound(Protocol):
    """A script as a function: first the objects that hold its keys, then what else it takes, by name.

    :ivar forms: functions that write several values as one, by the names that the header gives these forms.
    """

    script: Script
    forms: SimpleNamespace

    def __call__(self, *holders: Any, **named: Any) -> Call:
        """Return a call of the script."""


class Area:
    """The scripts of one folder; each is bound when it is first used.

    :param name: folder below ``lua/``.
    :param holders: classes of named tuples whose fields are names of keys. A script takes one of each that has one of
        its keys, in this order; keys that none has are named like arguments.
    """

    def __init__(self, name: str, *holders: type) -> None:
        self._name = name
        self._holders = holders

    def __getattr__(self, verb: str) -> Bound:
        """Return a script, for example ``scripts.sessions.ack`` for ``lua/sessions/ack.lua``."""
        if verb.startswith("_"):
            raise AttributeError(verb)
        try:
            bound = bind(load(f"{self._name}/{verb}"), self._holders)
        except ScriptError as error:
            raise AttributeError(str(error)) from error
        setattr(self, verb, bound)
        return bound

    def __dir__(self) -> list[str]:
        return [name.removeprefix(f"{self._name}/") for name in names() if name.startswith(f"{self._name}/")]


def bind(script: Script, holders: Sequence[type] = ()) -> Bound:
    """Return a script as a function, compiled for its header: a call costs what it costs to write out the lists.

    An argument that the header writes as several values is given as these, by their names.

    :raises ScriptError: when two of its keys and arguments would have to be given under the same name.
    """
    given: list[str] = []
    named: list[str] = []

    def source_of(key: Parameter) -> str:
        for holder in holders:
            annotation = getattr(holder, "__annotations__", {}).get(key.name)
            # A field that holds several names is not one key, and the other way round.
            if annotation is not None and ("tuple" in str(annotation)) == key.repeats:
                if holder.__name__ not in given:
                    given.append(holder.__name__)
                return f"{holder.__name__}.{key.name}"
        named.append(key.name)
        return key.name

    space: dict[str, Any] = {"_new": tuple.__new__, "_Call": Call, "_script": script}

    def written(form: Form) -> str:
        if form.is_text:
            return 'f"' + ":".join(f"{{{part}}}" for part in form.parts) + '"'
        space[f"_doubles_{len(form.parts)}"] = struct.Struct(f">{len(form.parts)}d").pack
        return f"_doubles_{len(form.parts)}({', '.join(form.parts)})"

    keys = _items(script.keys, [source_of(key) for key in script.keys])
    sources: list[str] = []
    forms: list[Form] = []
    for parameter in script.args:
        own = [form for form in parameter.forms if not form.name]
        named += own[0].parts if own else [parameter.name]
        sources.append(written(own[0]) if own else parameter.name)
        forms += (form for form in parameter.forms if form.name)
    args = _items(script.args, sources)
    if twice := {name for name in named if named.count(name) > 1}:
        raise ScriptError(
            f"{script.name} names {', '.join(sorted(twice))} twice: a key that no holder has, and an argument, need "
            "names of their own"
        )
    # One of each class that has a key of the script, in the order of the classes.
    first = [holder.__name__ for holder in holders if holder.__name__ in given]
    head = [*first, "/"] if first else []
    head += ["*", *named] if named else []
    verb = script.name.rpartition("/")[2]
    code = f"def {verb}({', '.join(head)}):\n    return _new(_Call, (_script, [{keys}], [{args}]))\n"
    for form in forms:
        code += f"def _form_{form.name}(*, {', '.join(form.parts)}):\n    return {written(form)}\n"
    exec(compile(code, f"<{script.name}>", "exec"), space)  # noqa: S102 - made of names that the header's rule admits
    bound: Bound = space[verb]
    bound.script = script
    bound.forms = SimpleNamespace(**{form.name: space[f"_form_{form.name}"] for form in forms})
    return bound


def _items(declared: Sequence[Parameter], sources: Sequence[str]) -> str:
    return ", ".join(f"*{source}" if each.repeats else source for each, source in zip(declared, sources, strict=True))
