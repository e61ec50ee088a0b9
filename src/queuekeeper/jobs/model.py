"""What a job is, and what every job plans, does and comes to, in one set of records."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Generic, TypeVar, get_args, get_origin

from queuekeeper.clock import Clock
from queuekeeper.errors import UsageError
from queuekeeper.jobs.counts import Counts
from queuekeeper.jobs.kinds import RunKind
from queuekeeper.jobs.pace import Breaker
from queuekeeper.jobs.parameters import Parameters
from queuekeeper.jobs.shares import check_servers
from queuekeeper.jobs.undo import read_undo_file
from queuekeeper.jobs.writer import Writer
from queuekeeper.postgres import Connection
from queuekeeper.redis_client import RedisClient
from queuekeeper.report.figures import instant
from queuekeeper.report.files import ReportKind

P = TypeVar("P", bound=Parameters)
C = TypeVar("C", bound=Counts)
F = TypeVar("F")
T = TypeVar("T")

INEXACT = "slots of the cluster moved while keys were looked for; plan again when they stay where they are"


@dataclass(frozen=True, kw_only=True)
class Words:
    """What people call a job, its runs and its changes. Sentences have ``{count}`` where the number goes.

    :param noun: a run, such as "repair of fan-out queues".
    :param title: the same as a heading.
    :param about: what runs work on, in the plural.
    :param command: that makes a plan.
    :param go_on: command that goes on with a run that was stopped.
    :param unit: what a run goes through, one of them.
    :param units: several of them.
    :param to_do: what follows the number of changes that are to be made.
    :param done: what follows the number of those that were made.
    :param planned: what a dry run has come to.
    :param nothing: what a run has come to that found nothing to do.
    :param left: what a second look has found.
    :param clean: what it says when it has found nothing.
    :param broken: what could not be worked on.
    :param hint: what to do about that.
    :param footer: says at the end of a report what names there are in it.
    """

    noun: str
    title: str
    about: str
    command: str
    go_on: str = "{command} --go-on {run_id}"
    unit: str = "key"
    units: str = "keys"
    to_do: str = "changes to be made"
    done: str = "changes made"
    planned: str = "{count} changes are to be made, nothing was changed"
    nothing: str = "healthy: there was nothing to do, and nothing was changed"
    left: str = "{count} changes are left to be made"
    clean: str = "clean: a second look finds nothing that was to be done"
    broken: str = "{count} keys cannot be worked on"
    hint: str = "the log of the plan says why"
    footer: str = "No message leaves the server."

    @classmethod
    def of_changes(cls, changes: str, **others: str) -> Words:
        """Return the words of a job whose changes have a name.

        :param changes: what it makes, in the plural, such as "repairs".
        """
        return cls(
            to_do=f"{changes} to be made",
            done=f"{changes} made",
            planned=f"{{count}} {changes} are to be made, nothing was changed",
            left=f"{{count}} {changes} are left to be made",
            **others,
        )


@dataclass(frozen=True, kw_only=True)
class Step:
    """A bounded piece of work.

    :param cursor: where a run goes on that has done it; any text that PostgreSQL can hold.
    :param work: what is to be done, in the job's own words.
    """

    cursor: str
    work: Any


@dataclass(frozen=True, kw_only=True)
class Table:
    """Something that a plan has found, for reports and screens.

    :param empty: sentence in the place of a table without rows.
    :param note: sentence below it.
    :param links: per row, the address that its last cell leads to on a page; empty for none.
    """

    heading: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    empty: str
    note: str = ""
    links: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SharePlan(Generic[C]):
    """What there is to do in one share."""

    share: str
    counts: C


@dataclass(frozen=True, kw_only=True)
class Plan(Generic[P, C, F]):
    """What a job would do; nothing was written.

    :param as_of_ms: the instant that the job judges by, however long the run takes.
    :param found: what the job says of it besides, in a record of its own.
    :param steps: those in which there is something to do, by their cursors, where the job works only through these.
    :param exact: whether everything was counted, and once; not so where slots of a cluster moved all the time.
    """

    parameters: P
    code_version: str
    as_of_ms: int
    shares: tuple[SharePlan[C], ...]
    counts: C
    found: F
    steps: tuple[str, ...]
    seconds: float
    exact: bool = True

    @property
    def empty(self) -> bool:
        """Whether there is nothing to do."""
        return not self.counts.changes and not self.counts.broken

    def share_names(self) -> list[str]:
        """Return the shares of the work."""
        return [each.share for each in self.shares]

    def share(self, name: str) -> SharePlan[C]:
        """Return one share of the work."""
        return next(each for each in self.shares if each.share == name)

    def facts(self) -> dict[str, Any]:
        """Return the plan as JSON can hold it; the steps are its own."""
        facts: dict[str, Any] = asdict(self)
        del facts["steps"]
        return {**facts, **facts.pop("found")}


@dataclass(frozen=True, kw_only=True)
class ShareReport(Generic[C]):
    """What was done in one share, over all calls of the run.

    :param done: whether the whole share was gone through; else the run can go on.
    :param stopped: why it was not; empty when it was.
    :param undo_file: what can be taken back; empty when nothing was changed, or the job has no way back.
    """

    maintenance_run_id: str
    share: str
    done: bool
    stopped: str
    counts: C
    seconds: float
    undo_file: str


@dataclass(frozen=True, kw_only=True)
class Outcome(Generic[P, C, F]):
    """A whole run, judged by a second look.

    :param counts: what was done; all 0 in a dry run.
    :param left: what the second look still finds to do; none where there was no need of one.
    :param proved: whether that look took in everything.
    :param open_shares: shares that were not gone through to the end.
    :param undo_files: those that tell what was done, as far as they are to be found from here.
    :param facts: what the job says of the whole besides.
    """

    maintenance_run_id: str
    dry_run: bool
    plan: Plan[P, C, F]
    counts: C
    left: C | None
    proved: bool
    open_shares: tuple[str, ...]
    facts: Mapping[str, Any]
    generated_at_ms: int
    undo_files: tuple[str, ...] = ()

    @property
    def moved_on(self) -> dict[str, int]:
        """What was planned and not done, by name: planned = done + moved on; less than 0 where more has come since."""
        return {} if self.dry_run or self.plan.empty else self.plan.counts.moved_on(self.counts)

    @property
    def clean(self) -> bool:
        """Whether nothing is left to do."""
        left = self.plan.counts if self.left is None else self.left
        return not self.open_shares and not left.changes and not self.broken

    @property
    def trouble(self) -> str:
        """What a look at the whole has found that must not wait; empty for nothing."""
        return str(self.facts.get("trouble") or "")

    @property
    def broken(self) -> int:
        """What could not be looked at or worked on."""
        return max(each.broken for each in (self.plan.counts, self.counts, self.left or self.counts))


@dataclass(frozen=True, kw_only=True)
class Undone:
    """What was taken back; of a dry run, what would be.

    :param noted: changes that the undo files tell of; the others were left, as somebody has gone on from them.
    """

    maintenance_run_id: str
    dry_run: bool
    files: int
    noted: int
    taken_back: int


@dataclass(kw_only=True)
class World(Generic[P]):
    """What a job works in during one pass: a plan, the work on a share, the second look, or taking back.

    :param now_ms: the instant that the job judges by.
    :param clock: what time it is meanwhile.
    :param writer: changes the store and notes what it changes, or only counts.
    :param wait: told of so much work, it returns when more may be done.
    :param rest: breaks the pass off while the run is paused and nobody stays; a job calls it within long steps, where
        :attr:`Job.begun` says all that was done.
    :param name_client: gives the name of a client for reports, a keyed hash of its id.
    :param breaker: makes steps smaller while the server struggles.
    :param planned: the plan that is carried out or looked at again; none while it is made.
    :param total: what was counted of the share so far, by earlier calls of the run too; none in a second look.
    :param token: names run and share to whatever lets only one at a time.
    :param database: PostgreSQL, for a job that reads it; none where nobody has named one.
    :param given: what a job is told and no record may hold, such as client ids.
    """

    client: RedisClient
    parameters: P
    now_ms: int
    clock: Clock
    writer: Writer
    wait: Callable[[float], None]
    breaker: Breaker
    say: Callable[[str], None]
    rest: Callable[[], None] = lambda: None
    name_client: Callable[[str], str] = lambda _: ""
    planned: Plan[P, Any, Any] | None = None
    total: Any = None
    run_id: str = ""
    token: str = ""
    database: Connection | None = None
    given: Any = None

    @property
    def counts_only(self) -> bool:
        """Whether nothing is changed."""
        return self.writer.counts_only

    def pace(self, amount: float) -> None:
        """Wait until the next call may be sent, and see how long the last one took.

        :param amount: how much the last one has brought.
        """
        self.breaker.answered()
        self.wait(amount)
        self.breaker.sent()

    def size(self, full: int) -> int:
        """Return how much the next step may take in: all of it, or less while the server struggles."""
        return self.breaker.size(full)

    def batches(self, items: Iterable[T], full: int) -> Iterator[list[T]]:
        """Cut items into what a step may take in, which is asked before each; see :meth:`size`."""
        iterator = iter(items)
        while batch := list(islice(iterator, self.size(full))):
            yield batch


@dataclass(frozen=True)
class NothingBesides:
    """A plan that is all in its counts."""


class Job(ABC, Generic[P, C, F]):
    """Work that changes data in bounded steps. One object makes one pass; the engine does all the rest.

    A job names the classes of its parameters, of its counts and of what its plans find as its types.

    :cvar kind: name of the job where all jobs are kept; a DAG has the same.
    :cvar dag: DAG whose runs carry it out, where that is another: who may start those may pause runs of the job.
    :cvar report: how the files of its reports are named, and what they are called; made of its name where it says none.
    :cvar on_redis: whether it works in Redis; else in PostgreSQL alone, and it is given no client.
    :cvar asks: whether somebody has to approve a plan before a task carries it out.
    :cvar undoes: whether what it does can be taken back.
    :cvar works_when_empty: whether shares are gone through though the plan has found nothing.
    :cvar fact_names: instants among :meth:`facts`, each with what people call it.
    :cvar keeps_steps: whether only the steps of the plan are worked through and looked at again.
    :cvar proof_steps: most steps that the second look takes in; none for all.
    :ivar proved: whether a second look has seen all that there is in what it looked at.
    :ivar moved: whether keys have moved to another server while they were looked for: some may have been missed, or met
        twice.
    :ivar begun: what was done so far of the step at hand, for a run that is paused, stopped or broken off within it;
        none where a job does not say.
    """

    kind: ClassVar[str]
    dag: ClassVar[str] = ""
    words: ClassVar[Words]
    report: ClassVar[ReportKind]
    Parameters: ClassVar[type[Any]]
    Counts: ClassVar[type[Any]]
    Found: ClassVar[type[Any]] = NothingBesides
    on_redis: ClassVar[bool] = True
    asks: ClassVar[bool] = False
    undoes: ClassVar[bool] = False
    works_when_empty: ClassVar[bool] = False
    fact_names: ClassVar[Mapping[str, str]] = MappingProxyType({})
    keeps_steps: ClassVar[bool] = False
    proof_steps: ClassVar[int | None] = None

    def __init_subclass__(cls) -> None:
        """Give a job the classes that it names as its types, and its kind of reports."""
        super().__init_subclass__()
        for base in vars(cls).get("__orig_bases__", ()):
            origin = get_origin(base)
            if isinstance(origin, type) and issubclass(origin, Job):
                # A class between may have settled the last of them.
                for name, kind in zip(("Parameters", "Counts", "Found"), get_args(base), strict=False):
                    if kind is not Any and not isinstance(kind, TypeVar):
                        setattr(cls, name, kind)
        if "kind" in vars(cls) and "report" not in vars(cls):
            cls.report = ReportKind(cls.kind, f"Report of the {cls.words.noun}")

    def __init__(self, world: World[P]) -> None:
        self.world = world
        self.proved = True
        self.moved = False
        self.begun: C | None = None

    # --- what it does --------------------------------------------------------------------------------------------

    @abstractmethod
    def shares(self) -> list[str]:
        """Return the names of the shares that tasks work on at the same time."""

    @abstractmethod
    def find(self, share: str, after: str = "") -> Generator[Step, None, None]:
        """Yield the steps of a share.

        :param after: cursor of the last step that was done; empty to begin.
        """

    @abstractmethod
    def apply(self, step: Step) -> C:
        """Do one step and return what was done; the store decides again. With a writer that counts, count it."""

    def look_again(self) -> Iterator[Step]:
        """Yield what the second look goes through."""
        for share in self.shares():
            yield from self.find(share)

    def found(self) -> F:
        """Return what the pass has found besides counts."""
        return self.Found()  # type: ignore[no-any-return]

    def undo(self, run_id: str, files: Sequence[Path]) -> Any:
        """Take back, or only count, what the undo files of a run tell of, and return a record of counts."""
        noted = taken_back = 0
        for path in files:
            for line in read_undo_file(path, kind=self.kind)[1]:
                noted += 1
                taken_back += self.take_back(line)
        return Undone(
            maintenance_run_id=run_id,
            dry_run=self.world.counts_only,
            files=len(files),
            noted=noted,
            taken_back=taken_back,
        )

    def take_back(self, line: Mapping[str, Any]) -> bool:
        """Take back what a line of an undo file tells of, unless somebody has gone on from it; tell whether it was."""
        raise UsageError(f"a {self.words.noun} has no way back")

    @classmethod
    def no_way_back(cls) -> str:
        """Return that what it does cannot be taken back; empty where it can."""
        return "" if cls.undoes else f"a {cls.words.noun} has no way back"

    @classmethod
    def run_kind(cls) -> RunKind:
        """Return what is to be known of its runs."""
        return RunKind(
            name=cls.kind,
            dag=cls.dag or cls.kind,
            noun=cls.words.noun,
            command=cls.words.command,
            fact_names=cls.fact_names,
            no_undo=lambda _: cls.no_way_back(),
        )

    def undo_header(self) -> dict[str, Any]:
        """Return what the first line of an undo file says besides run and share."""
        return {}

    @classmethod
    def settled(cls, parameters: P, database: Connection | None) -> P:
        """Return the parameters of a plan: what was asked for, with what had to be looked up first."""
        return parameters

    @classmethod
    def check(cls, client: RedisClient, parameters: P, *, writing: bool) -> None:
        """Check servers and rights before anything is done.

        :raises RefusedError: saying what is wrong.
        """
        if cls.on_redis:
            check_servers(client)

    # --- what it says --------------------------------------------------------------------------------------------

    @classmethod
    def rule_words(cls, parameters: P) -> str:
        """Return what a run was asked to do in a sentence."""
        return ", ".join(f"{name} {value}" for name, value in asdict(parameters).items() if value is not None)

    @classmethod
    def question(cls, run_id: str, plan: Plan[P, C, F]) -> str:
        """Return what is asked before anything changes."""
        return f"{plan.counts.changes:,} {cls.words.to_do}. Go on?"

    def done_words(self, share: str, counts: C) -> str:
        """Return what was done in a share, all told, in a sentence."""
        return f"{share}: {counts.changes:,} {self.words.done}, {counts.scanned:,} {self.words.units}"

    @classmethod
    def undo_words(cls, counted: Any) -> str:
        """Return what taking back would do in a sentence.

        :param counted: what :meth:`undo` has counted.
        """
        return f"{counted.taken_back:,} of {counted.noted:,} changes will be taken back."

    @classmethod
    def plan_rows(cls, plan: Plan[P, C, F]) -> list[tuple[str, str]]:
        """Return what a plan says as names and texts, for the person who approves it."""
        throttle = plan.parameters.max_operations_per_s  # type: ignore[attr-defined]
        return [
            ("As of", instant(plan.as_of_ms)),
            ("Shares", ", ".join(plan.share_names())),
            *([] if plan.exact else [("Counts", f"not exact: {INEXACT}")]),
            *plan.counts.rows(),
            ("Throttle", "none" if throttle is None else f"{throttle:,} operations/s"),
        ]

    @classmethod
    def figures(cls, outcome: Outcome[P, C, F]) -> list[tuple[str, str, str]]:
        """Return what stands out in a report: name, text, what it is about."""
        return []

    @classmethod
    def tables(cls, plan: Plan[P, C, F]) -> list[Table]:
        """Return what the plan has found, for a person."""
        return []

    @classmethod
    def shown(cls, outcome: Outcome[P, C, F]) -> list[Table]:
        """Return what a report shows besides its counts."""
        return cls.tables(outcome.plan)

    @classmethod
    def planned(cls, plan: Plan[P, C, F]) -> dict[str, Any]:
        """Return what JSON says of a plan besides, by names that the job has for it."""
        return {}

    @classmethod
    def told(cls, outcome: Outcome[P, C, F]) -> dict[str, Any]:
        """Return what JSON says of a run besides, for whoever reads the names of an earlier release."""
        return {}

    def facts(self) -> dict[str, Any]:
        """Return what there is to say of a whole run besides, when it is reported; ``trouble`` must not wait."""
        return {}


AnyJob = Job[Any, Any, Any]
AnyPlan = Plan[Any, Any, Any]
AnyOutcome = Outcome[Any, Any, Any]
