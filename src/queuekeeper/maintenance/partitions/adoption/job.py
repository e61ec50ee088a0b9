"""The job that adopts a plain table: copy behind a trigger, compare, exchange, and the way back until a commit."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable
from contextlib import suppress
from dataclasses import fields
from shlex import quote
from typing import Any, ClassVar

from psycopg import sql

from queuekeeper.errors import RefusedError, StalePlan, UsageError
from queuekeeper.jobs.kinds import Table as Shown
from queuekeeper.jobs.model import Job, Outcome, Plan, Step, Words, World
from queuekeeper.maintenance.partitions.adoption.model import (
    Act,
    AdoptionCounts,
    AdoptionFound,
    AdoptionParameters,
)
from queuekeeper.maintenance.partitions.adoption.statements import READS, RowKey, Said, Statements
from queuekeeper.maintenance.partitions.adoption.table import (
    State,
    fingerprint,
    read,
    refuse,
    sequences,
)
from queuekeeper.maintenance.partitions.adoption.work import Work
from queuekeeper.maintenance.partitions.keys import Key
from queuekeeper.maintenance.partitions.policies import delete_policy
from queuekeeper.maintenance.partitions.policy import spans
from queuekeeper.maintenance.partitions.session import pinned, table_lock
from queuekeeper.postgres import Connection
from queuekeeper.report.figures import duration, number, size
from queuekeeper.wording import number_of

_ROWS_PER_S = 15_000
"""Rows that are copied and compared in a second, for the forecast; a throttle makes it fewer."""

_ATTACH = " ATTACH PARTITION "
_COPY, _EXCHANGE, _DONE = "copy", "exchange", "done"


class Adoption(Job[AdoptionParameters, AdoptionCounts, AdoptionFound]):
    """Turn a plain table into a partitioned one while it is written to."""

    kind = "partition_adoption"
    on_redis = False
    asks = True
    words: ClassVar[Words] = Words(
        noun="adoption of a table",
        title="Adoption",
        about="a plain table that becomes a partitioned one",
        command="partitions adopt",
        go_on="{command} --go-on {run_id}",
        unit="row",
        units="rows",
        to_do="rows to be copied",
        done="changes made",
        planned="nothing was changed: the plan says what would be",
        nothing="there is nothing to do: the table is as it was asked for",
        left="not finished: what serves programs is as it was",
        clean="done",
        footer="No row leaves the server.",
    )

    def __init__(self, world: World[AdoptionParameters]) -> None:
        super().__init__(world)
        self._found = AdoptionFound()

    @property
    def database(self) -> Connection:
        """The database of the table."""
        if self.world.database is None:
            raise UsageError("the table is in PostgreSQL: name its database by --postgres-url")
        return self.world.database

    @property
    def asked(self) -> AdoptionParameters:
        """Parameters of the run."""
        return self.world.parameters

    @classmethod
    def no_way_back(cls) -> str:
        """Say what the way back is."""
        return (
            "An adoption has no undo of this kind: `queuekeeper partitions adopt TABLE --act back` is the way back, "
            "until somebody commits it."
        )

    def shares(self) -> list[str]:
        """Return the table."""
        return [self.asked.table]

    def found(self) -> AdoptionFound:
        """Return the statements, and what the copy takes."""
        return self._found

    # --- steps ---------------------------------------------------------------------------------------------------

    def find(self, share: str, after: str = "") -> Generator[Step, None, None]:
        """Yield the steps from what the catalog says of the table: a crash may have come anywhere."""
        with pinned(self.database, lock_timeout_ms=self.asked.exchange_ms):
            self.world.pace(0)
            table = read(self.database, self.asked)
            self.world.breaker.answered()
            if self.world.counts_only:
                yield from self._steps(after)
                return
            with table_lock(self.database, table.name, table.oid):
                yield from self._steps(after)

    def _steps(self, after: str) -> Generator[Step, None, None]:
        table = read(self.database, self.asked)
        state = table.state
        match self.asked.act:
            case Act.ADOPT if state is State.EXCHANGED and self.world.planned is None:
                raise RefusedError(
                    f"{table.name} was adopted, and nobody has committed it: commit it by `queuekeeper partitions "
                    f"adopt {quote(table.name)} --act commit`, or return to the old table by --act back"
                )
            case Act.ADOPT if state is State.EXCHANGED:
                if after and json.loads(after)[0] != _DONE:
                    # It was killed between the exchange and its note.
                    yield Step(cursor=json.dumps([_DONE, None]), work=(_DONE,))
            case Act.ADOPT if state is State.COPYING and self.world.planned is None:
                raise RefusedError(
                    f"an adoption of {table.name} is under way: `queuekeeper run list` shows its run, and `queuekeeper "
                    "partitions adopt --go-on RUN` goes on with it; "
                    f"`queuekeeper partitions adopt {quote(table.name)} --act back` ends it"
                )
            case Act.ADOPT:
                yield from self._adoption(self._new_work(), state, json.loads(after) if after else [None, None])
            case _ if state is State.PLAIN:
                if self.world.planned is None:
                    raise RefusedError(
                        f"no adoption of {table.name} is under way: there is nothing to {self.asked.act}"
                    )
            case Act.COMMIT if state is State.EXCHANGED:
                work = self._work_under_way()
                work.check_removal()
                self._tell([*work.statements.silence(), *work.statements.removal()])
                yield Step(cursor=json.dumps([_DONE, None]), work=("commit", work))
            case Act.COMMIT:
                raise RefusedError(
                    f"{table.name} is not exchanged yet, so there is nothing to commit: go on with the adoption, or "
                    "end it by --act back"
                )
            case Act.BACK:
                yield from self._way_back(state)

    def _new_work(self) -> Work:
        """Return what works on a table that serves as it is; refuse one that cannot be adopted.

        :raises RefusedError: with all reasons, before anything is written.
        """
        self.asked.check_described()
        table = read(self.database, self.asked)
        if table.state is not State.COPYING and not (self.world.planned and self.world.counts_only):
            refuse(self.database, table, self.asked)
        key = Key(column=self.asked.key, type_name=str(table.key_type))
        spans(self.asked.policy(), key)
        write = Statements(table=table, key=key, old_oid=table.oid)
        found = write.definitions_of(self.database, table.oid, self.asked)
        return Work(connection=self.database, world=self.world, statements=write, definitions=found)

    def _work_under_way(self) -> Work:
        """Return what works on an adopted table, by the parameters of the run that adopted it."""
        table = read(self.database, self.asked)
        old_oid = int(str(table.room).rpartition("_")[2])
        first = Statements(table=table, key=Key(column="", type_name="bigint"), old_oid=old_oid)
        row = self.database.execute(first.parameters()).fetchone()
        names = {each.name for each in fields(AdoptionParameters)}
        kept = {name: value for name, value in (row[0] if row else {}).items() if name in names}
        # Pace and patience are those of this run.
        own = {
            "act",
            "max_operations_per_s",
            "max_run_minutes",
            "batch_rows",
            "max_standby_lag_s",
            "max_waiting",
            "exchange_ms",
        }
        given = {name: getattr(self.asked, name) for name in own}
        kept |= {**given, "act": Act.BACK, "storage": tuple(kept.get("storage") or ())}
        self.world.parameters = AdoptionParameters(**kept)
        again = read(self.database, self.asked)
        key = Key(column=self.asked.key, type_name=str(again.key_type))
        write = Statements(table=again, key=key, old_oid=old_oid)
        found = write.definitions_of(self.database, old_oid, self.asked)
        return Work(connection=self.database, world=self.world, statements=write, definitions=found)

    def _adoption(self, work: Work, state: State, after: list[Any]) -> Generator[Step, None, None]:
        phase, key = after
        planning = self.world.counts_only
        if planning and self.world.planned is None:
            self._forecast(work)
        elif planning:
            # The second look: whatever is not exchanged is left to do.
            yield Step(cursor="", work=(_EXCHANGE, None))
            return
        elif self.world.planned and self.world.planned.found.fingerprint != fingerprint(work.definitions):
            raise StalePlan(
                f"{work.table.name} was altered since the plan: "
                + ("plan again" if state is not State.COPYING else "end it by --act back, then plan again")
            )
        if not planning and state is not State.COPYING:
            if phase is not None:
                raise StalePlan(f"the copy of {work.table.name} was removed meanwhile: plan again")
            work.prepare()
        if phase in (None, _COPY):
            behind: RowKey = tuple(key) if key else None
            for first, last, rows in work.batches(behind):
                yield Step(cursor=json.dumps([_COPY, last]), work=(_COPY, work, first, last, rows))
        if planning:
            yield Step(cursor="", work=(_EXCHANGE, None))
            return
        yield from self._exchange(work, work.statements.copy, _EXCHANGE)

    def _exchange(self, work: Work, aside: sql.Identifier, how: str) -> Generator[Step, None, None]:
        """Yield the comparison of all rows with those of the other table, and the exchange.

        The comparison goes on until the exchange: when that has to wait for long, all is compared once more.
        """
        self._is_exchanged = False
        while not self._is_exchanged:
            behind = None
            for first, last, rows in work.batches(None):
                behind = last
                yield Step(cursor=json.dumps([_EXCHANGE, None]), work=("compare", work, aside, first, last, rows))
            yield Step(cursor=json.dumps([_EXCHANGE, None]), work=("compare", work, aside, behind, None, 0))
            yield Step(cursor=json.dumps([_EXCHANGE, None]), work=(how, work))

    def _way_back(self, state: State) -> Generator[Step, None, None]:
        if state is State.EXCHANGED:
            work = self._work_under_way()
            work.check_return()
            self._tell([work.statements.lock(work.statements.old), *work.returning()])
            if self.world.counts_only:
                yield Step(cursor=json.dumps([_EXCHANGE, None]), work=("return", work))
            else:
                yield from self._exchange(work, work.statements.old, "return")
        else:
            table = read(self.database, self.asked)
            write = Statements(table=table, key=Key(column="", type_name="bigint"), old_oid=table.oid)
            work = Work(connection=self.database, world=self.world, statements=write, definitions=[])
            if state is State.COPYING:
                self._tell([*write.silence(), *write.removal()])
                yield Step(cursor=json.dumps(["silence", None]), work=("silence", work))
        yield Step(cursor=json.dumps([_DONE, None]), work=("drop", work))

    def apply(self, step: Step) -> AdoptionCounts:
        """Do one step; with a counting writer, only count."""
        what, *rest = step.work
        counts_only = self.world.counts_only
        match what:
            case "copy":
                work, first, last, rows = rest
                if counts_only:
                    self.world.pace(rows)
                return AdoptionCounts(seen=rows, copied=rows if counts_only else work.copy(first, last, rows))
            case "compare":
                work, aside, first, last, rows = rest
                return AdoptionCounts(compared=work.compare(aside, first, last, rows))
            case "done":
                return AdoptionCounts(exchanged=1)
            case "exchange" | "return" if counts_only:
                return AdoptionCounts(exchanged=1)
            case "exchange":
                return self._kept(rest[0].exchange())
            case "return":
                return self._kept(rest[0].exchange_back(lambda: self._forget(rest[0].table.name)))
            case "silence":
                if not counts_only:
                    rest[0].stop_noting()
                return AdoptionCounts()
            case "commit":
                if not counts_only:
                    rest[0].commit()
                return AdoptionCounts(dropped=1)
            case _:
                if not counts_only:
                    rest[0].remove()
                return AdoptionCounts(dropped=1)

    def _kept(self, counts: AdoptionCounts | None) -> AdoptionCounts:
        self._is_exchanged = counts is not None
        return counts or AdoptionCounts()

    def _forget(self, name: str) -> None:
        with suppress(UsageError):
            delete_policy(self.database, name)

    # --- plan ----------------------------------------------------------------------------------------------------

    def _forecast(self, work: Work) -> None:
        """Find the statements, and how much and how long the copy takes."""
        write, table = work.statements, work.table
        made = work.preparation()
        first = tuple("…" for _ in table.keys)
        copied = write.copying(first, first).as_string(None)
        statements = [
            *made,
            (copied, f"{READS}; one statement for each batch"),
            (write.comparison(write.copy, first, first).as_string(None), f"{READS}; again until the exchange"),
            *((each.as_string(None), READS) for each in write.repetition(write.serving, write.copy, 0)),
            write.lock(write.copy),
            *write.exchange(work.definitions, sequences(self.database, table.oid)),
        ]
        self._tell(
            statements,
            partitions=sum(_ATTACH in words for words, _ in made),
            bytes=table.bytes,
            widened=write.keys != table.keys,
            fingerprint=fingerprint(work.definitions),
        )

    def _tell(self, statements: Iterable[Said], **rest: Any) -> None:
        self._found = AdoptionFound(statements=tuple(statements), **rest)

    # --- words ---------------------------------------------------------------------------------------------------

    @classmethod
    def question(cls, run_id: str, plan: Plan[AdoptionParameters, AdoptionCounts, AdoptionFound]) -> str:
        """Ask by the act: only a commit cannot be taken back."""
        table = plan.parameters.table
        match plan.parameters.act:
            case Act.COMMIT:
                return f"The old table of {table} will be dropped for good, and there is no way back. Commit?"
            case Act.BACK:
                return f"{table} will be the plain table again, with all changes made since. Return?"
            case _:
                return (
                    f"{table}: {number_of(plan.counts.copied, 'row')} will be copied while it is in use, then the "
                    "tables change places under a short lock. Adopt?"
                )

    @classmethod
    def plan_rows(cls, plan: Plan[AdoptionParameters, AdoptionCounts, AdoptionFound]) -> list[tuple[str, str]]:
        """Return the plan as pairs of name and text."""
        return [*super().plan_rows(plan), *cls._takes(plan)]

    @classmethod
    def figures(cls, outcome: Outcome[AdoptionParameters, AdoptionCounts, AdoptionFound]) -> list[tuple[str, str, str]]:
        """Return what the adoption takes."""
        return [(name, text, "as planned") for name, text in cls._takes(outcome.plan)]

    @classmethod
    def _takes(cls, plan: Plan[AdoptionParameters, AdoptionCounts, AdoptionFound]) -> list[tuple[str, str]]:
        """Return how much and how long an adoption takes, and what changes for programs."""
        found, asked = plan.found, plan.parameters
        if asked.act is not Act.ADOPT:
            return []
        rate = min(_ROWS_PER_S, asked.max_operations_per_s or _ROWS_PER_S)
        rows = [
            ("Partitions", number(found.partitions)),
            ("Size with indexes", size(found.bytes)),
            ("Duration", f"about {duration(plan.counts.copied / rate)}"),
            ("Others wait", f"at most {asked.exchange_ms:,} ms"),
        ]
        if found.widened:
            rows.append(("Keys", f"unique together with {asked.key} only: ON CONFLICT has to name it, too"))
        return rows

    @classmethod
    def tables(cls, plan: Plan[AdoptionParameters, AdoptionCounts, AdoptionFound]) -> list[Shown]:
        """Return the statements with their locks."""
        said = [(words, lock or "nobody waits") for words, lock in plan.found.statements]
        attached = [at for at, (words, _) in enumerate(said) if _ATTACH in words]
        if len(attached) > 1:
            # The first partition stands for all in what people read; the record has every statement.
            alike = f"-- the same for {number_of(len(attached) - 1, 'more partition')}; --json shows every statement"
            said[attached[0] + 2 : attached[-1] + 2] = [(alike, "nobody waits")]
        return [Shown(heading="Statements", heads=("SQL", "lock"), rows=tuple(said), empty="None.")]

    @classmethod
    def shown(cls, outcome: Outcome[AdoptionParameters, AdoptionCounts, AdoptionFound]) -> list[Shown]:
        """Return what is to be done next, after the exchange."""
        if not outcome.counts.exchanged or outcome.plan.parameters.act is not Act.ADOPT:
            return cls.tables(outcome.plan) if outcome.dry_run else []
        name = quote(outcome.plan.parameters.table)
        rows = (
            (f"queuekeeper partitions adopt {name} --act commit", "drops the old table"),
            (
                f"queuekeeper partitions adopt {name} --act back",
                "returns to the old table, with all changes made since",
            ),
        )
        return [Shown(heading="Next", heads=("command", "what it does"), rows=rows, empty="")]
