"""What is wrong, in words: each a sentence, and where it is mended."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from pabal.console.figures import age, count
from pabal.console.pages import link
from pabal.console.texts import Texts
from pabal.events.backlog import MOST, Backlog
from pabal.queue.census import Count
from pabal.queue.chores import Run
from pabal.queue.pulse import Beat
from pabal.queue.roll import BEAT, Entry

LONG = {"relay": timedelta(minutes=1), "events": timedelta(minutes=5), "notifications": timedelta(minutes=5)}
"""How long the oldest of a lane may be due before somebody should look. A message's callback lives for a minute."""
ROOMS = {
    "relay": "/console/relay",
    "events": "/console/events?status=pending",
    "notifications": "/console/notifications?state=pending",
}
WORKED = ("events", "notifications")
"""The lanes that need a worker; messages wait for their bots."""
QUIET = 3 * BEAT
"""Three reports missed: who is silent for so long is hung, cut off or dead."""
NAMED = 3


@dataclass(frozen=True, slots=True)
class Picture:
    """Everything that is looked at, at one moment."""

    listening: bool
    count: Count
    hour: Mapping[str, Sequence[Beat]]
    workers: Sequence[Entry]
    chores: Sequence[Run]
    backlogs: Sequence[Backlog]


@dataclass(frozen=True, slots=True)
class Concern:
    """Something that is wrong: the sentence, what it speaks of, where to go. What is `bad` does not mend itself."""

    says: str
    where: str
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    bad: bool = True

    def told(self, t: Texts) -> str:
        return t(self.says).format(**{name: t.retell(fact) for name, fact in self.facts.items()})


def concerns(seen: Picture) -> list[Concern]:
    """What somebody should look at, the worst first."""
    found = [*dead(seen), *waiting(seen), *silent(seen), *neglected(seen), *unwanted(seen), *deaf(seen)]
    return sorted(found, key=lambda concern: not concern.bad)


def dead(seen: Picture) -> Iterator[Concern]:
    """Letters until somebody has seen to them; of notifications, which stay failed, those of the last hour."""
    if letters := seen.count.lane("events").dead:
        yield Concern("letters left", "/console/dead", {"count": count(letters)})
    if notices := sum(beat.dead for beat in seen.hour["notifications"]):
        yield Concern("notices undelivered", "/console/notifications?state=failed", {"count": count(notices)})


def waiting(seen: Picture) -> Iterator[Concern]:
    """What waits long, or for nobody."""
    worked = {lane for worker in seen.workers if worker.silent < QUIET for lane in worker.lanes}
    for lane in seen.count.lanes:
        if lane.waiting and lane.name in WORKED and lane.name not in worked:
            yield Concern(f"{lane.name} unworked", "/console#workers", {"count": count(lane.waiting)})
        elif lane.waiting and lane.oldest_due >= LONG[lane.name]:
            yield Concern(f"{lane.name} waiting", ROOMS[lane.name], {"age": age(lane.oldest_due)}, bad=False)


def silent(seen: Picture) -> Iterator[Concern]:
    for worker in seen.workers:
        if worker.silent >= QUIET:
            yield Concern("worker silent", "/console#workers", {"worker": worker.id, "age": age(worker.silent)})


def neglected(seen: Picture) -> Iterator[Concern]:
    if failing := [run.name for run in seen.chores if run.error]:
        yield Concern("chores failing", "/console#chores", named(failing))
    if late := [run.name for run in seen.chores if run.overdue]:
        yield Concern("chores overdue", "/console#chores", named(late))


def unwanted(seen: Picture) -> Iterator[Concern]:
    """Events that wait for a receiver who gets none, or that no handler takes."""
    for backlog in seen.backlogs:
        facts = {"service": backlog.service, "count": at_least(backlog.count)}
        yield Concern(f"receiver {backlog.state}", f"/console/services/{backlog.service}", facts, bad=False)
    for left in seen.count.unhandled:
        if left.count:
            facts = {"service": left.service, "count": count(left.count)}
            yield Concern("events unhandled", link("/console/events", target=left.service, status="pending"), facts)


def deaf(seen: Picture) -> Iterator[Concern]:
    if not seen.listening:
        yield Concern("doorbell deaf", "/console/health", bad=False)


def named(names: Sequence[str]) -> dict[str, str]:
    """How many, and the first of them."""
    more = ", …" if len(names) > NAMED else ""
    return {"count": count(len(names)), "names": ", ".join(names[:NAMED]) + more}


def at_least(number: int) -> str:
    return f"{count(number)}+" if number >= MOST else count(number)
