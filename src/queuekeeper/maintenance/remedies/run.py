"""Plans, does and takes back any remedy, queue by queue; what is wrong with a queue the remedies know."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any

from queuekeeper.clock import Clock, system_clock
from queuekeeper.errors import MovedOn, NotOwner, PacketIdInUse, UsageError
from queuekeeper.identity import client_hash
from queuekeeper.jobs.undo import UndoFile, read_undo_file
from queuekeeper.maintenance.remedies.access import check_access
from queuekeeper.maintenance.remedies.model import (
    EXAMPLES,
    Effect,
    Progress,
    Queue,
    QueuePlan,
    QueueRefused,
    Remedy,
    RemedyParameters,
    RemedyPlan,
    RemedyReport,
    UndoReport,
)
from queuekeeper.maintenance.remedies.registry import remedy_named
from queuekeeper.maintenance.remedies.world import KEYS_PER_CALL, World, batches
from queuekeeper.postgres import Connection
from queuekeeper.redis_client import RedisClient

_NOT_TREATED = (QueueRefused, MovedOn, NotOwner, PacketIdInUse)
"""What stops one queue only."""


def at_full_speed(keys: int) -> None:
    """Wait for nothing."""


def plan_remedy(
    client: RedisClient,
    *,
    remedy: str,
    queues: Sequence[Queue],
    parameters: RemedyParameters,
    source: Connection | None = None,
    clock: Clock = system_clock,
    pace: Callable[[int], None] = at_full_speed,
) -> RemedyPlan:
    """Have a remedy count what it would change; nothing is written.

    :param remedy: one of ``REMEDY_NAMES``.
    :param queues: sessions to look at.
    :param source: database with TBMQ's tables, for remedies that read it.
    :param pace: called with a number of keys before they are asked for; waits as long as it wants.
    :raises UsageError: when there is no such remedy.
    :raises RefusedError: when a server is too old, or the user may not run a command; names the rules that allow it.
    """
    chosen = remedy_named(remedy)
    _check_source(chosen, source)
    check_access(client, chosen, key_prefix=parameters.key_prefix, writing=False)
    world = World(client=client, parameters=parameters, source=source, clock=clock, pace=pace, counts_only=True)
    found: list[QueuePlan] = []
    examples: list[dict[str, Any]] = []
    for queue, effects, refused in _counted(chosen, world, queues):
        if refused:
            found.append(QueuePlan(client_hash=queue.client_hash, refused=refused))
        elif effects:
            counts = dict(sorted(Counter(effect.kind for effect in effects).items()))
            found.append(QueuePlan(client_hash=queue.client_hash, effects=counts))
            examples += (effect.shown(queue.client_hash) for effect in effects[: EXAMPLES - len(examples)])
    return RemedyPlan(
        remedy=remedy,
        parameters=parameters,
        looked_at=len(queues),
        queues=tuple(found),
        examples=tuple(examples),
        undo=chosen.undo_words,
    )


def apply_remedy(
    client: RedisClient,
    *,
    plan: RemedyPlan,
    queues: Sequence[Queue],
    undo_path: Path,
    run_id: str = "",
    source: Connection | None = None,
    clock: Clock = system_clock,
    pace: Callable[[int], None] = at_full_speed,
    so_far: Progress | None = None,
    progress: Callable[[Progress], None] = lambda progress: None,
) -> RemedyReport:
    """Do what a plan says, and no more of it in any queue, also over several tries; repeat it after an interruption.

    Each queue is looked at again, and each change is made by a script that looks once more, so what somebody has
    changed since is left alone.

    :param queues: at least those of the plan.
    :param undo_path: file to note changes in before they are made; it appears with the first one that can be undone.
    :param run_id: name of the run in the undo file.
    :param pace: as for :func:`plan_remedy`.
    :param so_far: what earlier tries have done; it is not done again.
    :param progress: called after each step.
    """
    started_s = time.monotonic()
    chosen = remedy_named(plan.remedy)
    _check_source(chosen, source)
    check_access(client, chosen, key_prefix=plan.parameters.key_prefix, writing=True)
    world = World(client=client, parameters=plan.parameters, source=source, clock=clock, pace=pace)
    planned = {queue.client_hash: queue.effects for queue in plan.queues if queue.effects}
    begun = so_far or Progress()
    all_wanted = sorted(
        (queue for queue in queues if queue.client_hash in planned), key=lambda queue: queue.client_hash
    )
    wanted = [queue for queue in all_wanted if queue.client_hash >= begun.queue]
    header = {"kind": plan.remedy, "run_id": run_id, "parameters": asdict(plan.parameters)}
    done: Counter[str] = Counter(begun.done)
    refusals: Counter[str] = Counter()
    treated, changed, not_planned = begun.queues, 0, 0
    before = len(all_wanted) - len(wanted)
    with UndoFile(undo_path, header) if chosen.can_undo and all_wanted else nullcontext() as undo:
        for looked_at, (queue, found, refused) in enumerate(_found(chosen, world, wanted), start=before + 1):
            digest = queue.client_hash
            in_queue: Counter[str] = Counter(begun.in_queue if digest == begun.queue else ())
            if refused:
                refusals[refused] += 1
                continue
            effects = _within(found, Counter(planned[digest]) - in_queue, whole=chosen.whole)
            not_planned += len(found) - len(effects)
            if not effects:
                continue
            treated += not in_queue
            try:
                for batch in _batches(chosen, effects):
                    if undo is not None:
                        undo.write({"client_id": queue.client_id, "effect": asdict(each)} for each in batch)
                    for effect, was_done in zip(batch, chosen.apply(world, queue, batch), strict=True):
                        if was_done:
                            done[effect.kind] += 1
                            in_queue[effect.kind] += 1
                        else:
                            changed += 1
                    progress(
                        Progress(
                            queue=digest,
                            in_queue=dict(in_queue),
                            looked_at=looked_at,
                            queues=treated,
                            done=dict(done),
                        )
                    )
            except _NOT_TREATED as error:
                refusals[str(error)] += 1
    return RemedyReport(
        remedy=plan.remedy,
        queues=treated,
        done=dict(sorted(done.items())),
        moved_on={kind: count - done[kind] for kind, count in plan.effects.items() if count > done[kind]},
        changed=changed,
        not_planned=not_planned,
        refusals=dict(sorted(refusals.items())),
        undo_file=str(undo_path) if undo is not None and undo_path.exists() else "",
        seconds=round(time.monotonic() - started_s, 3),
    )


def undo_remedy(
    client: RedisClient,
    *,
    path: Path,
    key: bytes,
    dry_run: bool = False,
    clock: Clock = system_clock,
    pace: Callable[[int], None] = at_full_speed,
) -> UndoReport:
    """Take back what an undo file tells, the last change first, where nobody has touched the place since.

    :param key: secret of :func:`queuekeeper.identity.hash_key`.
    :param dry_run: the scripts decide all the same, and only count.
    :raises UsageError: when it is no undo file of a remedy.
    """
    header, lines = read_undo_file(path)
    chosen = remedy_named(str(header.get("kind")))
    try:
        parameters = RemedyParameters(**header["parameters"])
        # A repeated run may have noted a change twice: the last time counts.
        noted: dict[tuple[str, Effect], None] = {}
        for line in lines:
            change = (line["client_id"], Effect(**line["effect"]))
            noted.pop(change, None)
            noted[change] = None
    except (KeyError, TypeError) as error:
        raise UsageError(f"{path} is damaged: {error}") from None
    check_access(client, chosen, key_prefix=parameters.key_prefix, writing=not dry_run)
    world = World(client=client, parameters=parameters, clock=clock, pace=pace, counts_only=dry_run)
    left: Counter[str] = Counter()
    for client_id, group in groupby(reversed(noted), key=lambda each: each[0]):
        queue = Queue(client_id=client_id, client_hash=client_hash(client_id, key=key))
        effects = [effect for _, effect in group]
        # Noted in order, taken back in reverse; a remedy that takes its own steps reverses those.
        if chosen.whole:
            effects.reverse()
        for batch in _batches(chosen, effects):
            try:
                left.update(reason for reason in chosen.undo(world, queue, batch) if reason)
            except _NOT_TREATED as error:
                left[str(error)] += len(batch)
    return UndoReport(
        remedy=chosen.name, dry_run=dry_run, restored=len(noted) - left.total(), left=dict(sorted(left.items()))
    )


def _check_source(remedy: Remedy, source: Connection | None) -> None:
    if remedy.reads_source and source is None:
        raise UsageError(f"{remedy.name} needs the PostgreSQL database that the sessions came from: name it")


def _found(remedy: Remedy, world: World, queues: Sequence[Queue]) -> Iterator[tuple[Queue, list[Effect], str]]:
    """Look at queues one by one: what would be done, or why nothing can be."""
    surveyed = remedy.survey(world, queues) if queues else {}
    for queue in queues:
        try:
            yield queue, remedy.find(world, queue, surveyed.get(queue.client_id, ())), ""
        except _NOT_TREATED as error:
            yield queue, [], str(error)


def _counted(remedy: Remedy, world: World, queues: Sequence[Queue]) -> Iterator[tuple[Queue, list[Effect], str]]:
    """Do all but write, queue by queue: what would be done, or why nothing can be.

    :param world: one in which nothing is written.
    """
    for queue, found, refused in _found(remedy, world, queues):
        if refused or remedy.reads_back:
            yield queue, found, refused
            continue
        effects: list[Effect] = []
        try:
            for batch in _batches(remedy, found):
                would_be_done = remedy.apply(world, queue, batch)
                effects += (effect for effect, done in zip(batch, would_be_done, strict=True) if done)
        except _NOT_TREATED as error:
            yield queue, [], str(error)
        else:
            yield queue, effects, ""


def _batches(remedy: Remedy, effects: Sequence[Effect]) -> Iterator[list[Effect]]:
    """Cut the effects of a queue into what is done at once."""
    return batches(effects, max(1, len(effects)) if remedy.whole else KEYS_PER_CALL)


def _within(found: Sequence[Effect], left: Counter[str], *, whole: bool) -> list[Effect]:
    """Return as many effects of each kind as are left of the plan."""
    effects: list[Effect] = []
    for effect in found:
        if left[effect.kind] > 0:
            left[effect.kind] -= 1
            effects.append(effect)
    return [] if whole and len(effects) < len(found) else effects
