"""What is wrong, in words: each a sentence, and where it is mended."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from pabal.console.figures import format_age, format_count
from pabal.console.pages import build_url
from pabal.console.texts import Translator
from pabal.events.backlog import MAX_BACKLOG_COUNT, SubscriptionBacklog
from pabal.queue.census import HubStats
from pabal.queue.chores import ChoreRun
from pabal.queue.pulse import ThroughputMinute
from pabal.queue.roll import HEARTBEAT_INTERVAL, ProcessInfo

MAX_WAIT = {"relay": timedelta(minutes=1), "events": timedelta(minutes=5), "notifications": timedelta(minutes=5)}
"""How long the oldest of a lane may be due before somebody should look. A message's callback lives for a minute."""
PENDING_URLS = {
    "relay": "/console/relay",
    "events": "/console/events?status=pending",
    "notifications": "/console/notifications?state=pending",
}
WORKER_LANES = ("events", "notifications")
"""The lanes that need a worker; messages wait for their bots."""
SILENT_AFTER = 3 * HEARTBEAT_INTERVAL
"""Three reports missed: who is silent for so long is hung, cut off or dead."""
MAX_NAMES = 3


@dataclass(frozen=True, slots=True)
class OverviewSnapshot:
    """Everything that is looked at, at one moment."""

    listening: bool
    stats: HubStats
    throughput: Mapping[str, Sequence[ThroughputMinute]]
    workers: Sequence[ProcessInfo]
    chores: Sequence[ChoreRun]
    backlogs: Sequence[SubscriptionBacklog]


@dataclass(frozen=True, slots=True)
class Issue:
    """Something that is wrong: the sentence, what it speaks of, where to go. What is `bad` does not mend itself."""

    text_id: str
    url: str
    values: Mapping[str, Any] = field(default_factory=dict[str, Any])
    is_error: bool = True

    def translate(self, t: Translator) -> str:
        return t(self.text_id).format(**{name: t.translate(fact) for name, fact in self.values.items()})


def find_issues(snapshot: OverviewSnapshot) -> list[Issue]:
    """What somebody should look at, the worst first."""
    found = [
        *dead_letter_issues(snapshot),
        *waiting_issues(snapshot),
        *silent_worker_issues(snapshot),
        *chore_issues(snapshot),
        *receiver_issues(snapshot),
        *listener_issues(snapshot),
    ]
    return sorted(found, key=lambda concern: not concern.is_error)


def dead_letter_issues(snapshot: OverviewSnapshot) -> Iterator[Issue]:
    """Letters until somebody has seen to them; of notifications, which stay failed, those of the last hour."""
    if letters := snapshot.stats.lane("events").dead:
        yield Issue("letters left", "/console/dead", {"count": format_count(letters)})
    if notices := sum(beat.dead for beat in snapshot.throughput["notifications"]):
        yield Issue("notices undelivered", "/console/notifications?state=failed", {"count": format_count(notices)})


def waiting_issues(snapshot: OverviewSnapshot) -> Iterator[Issue]:
    """What waits long, or for nobody."""
    worked = {lane for worker in snapshot.workers if worker.silent < SILENT_AFTER for lane in worker.lanes}
    for lane in snapshot.stats.lanes:
        if lane.waiting and lane.name in WORKER_LANES and lane.name not in worked:
            yield Issue(f"{lane.name} unworked", "/console#workers", {"count": format_count(lane.waiting)})
        elif lane.waiting and lane.oldest_due >= MAX_WAIT[lane.name]:
            yield Issue(
                f"{lane.name} waiting", PENDING_URLS[lane.name], {"age": format_age(lane.oldest_due)}, is_error=False
            )


def silent_worker_issues(snapshot: OverviewSnapshot) -> Iterator[Issue]:
    for worker in snapshot.workers:
        if worker.silent >= SILENT_AFTER:
            yield Issue("worker silent", "/console#workers", {"worker": worker.id, "age": format_age(worker.silent)})


def chore_issues(snapshot: OverviewSnapshot) -> Iterator[Issue]:
    if failing := [run.name for run in snapshot.chores if run.error]:
        yield Issue("chores failing", "/console#chores", count_and_names(failing))
    if late := [run.name for run in snapshot.chores if run.is_overdue]:
        yield Issue("chores overdue", "/console#chores", count_and_names(late))


def receiver_issues(snapshot: OverviewSnapshot) -> Iterator[Issue]:
    """Events that wait for a receiver who gets none, or that no handler takes."""
    for backlog in snapshot.backlogs:
        facts = {"service": backlog.service, "count": format_capped_count(backlog.count)}
        yield Issue(f"receiver {backlog.state}", f"/console/services/{backlog.service}", facts, is_error=False)
    for left in snapshot.stats.unhandled:
        if left.count:
            facts = {"service": left.service, "count": format_count(left.count)}
            yield Issue("events unhandled", build_url("/console/events", target=left.service, status="pending"), facts)


def listener_issues(snapshot: OverviewSnapshot) -> Iterator[Issue]:
    if not snapshot.listening:
        yield Issue("doorbell deaf", "/console/health", is_error=False)


def count_and_names(names: Sequence[str]) -> dict[str, str]:
    """How many, and the first of them."""
    more = ", …" if len(names) > MAX_NAMES else ""
    return {"count": format_count(len(names)), "names": ", ".join(names[:MAX_NAMES]) + more}


def format_capped_count(number: int) -> str:
    return f"{format_count(number)}+" if number >= MAX_BACKLOG_COUNT else format_count(number)
