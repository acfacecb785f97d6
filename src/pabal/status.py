"""The status of the hub: its lanes, its processes, and what needs attention. Read from the database alone."""

import shutil
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from pabal.core.errors import PabalError
from pabal.core.finding import Finding, FindingLevel
from pabal.core.messages import Message, duration_message, join_messages
from pabal.db.pool import ConnectOptions, Database
from pabal.db.tx import Tx
from pabal.events.consume.consumers import (
    BlockedKey,
    FailingReceiver,
    PlainClaims,
    SilentConsumer,
    count_plain_claims,
    list_blocked_keys,
    list_failing_receivers,
    list_silent_consumers,
)
from pabal.events.events import MAX_BACKLOG_COUNT, SubscriptionBacklog, list_subscription_backlogs
from pabal.queue.processes import HEARTBEAT_INTERVAL, ProcessInfo, list_processes
from pabal.queue.throughput import ThroughputMinute, last_hour_throughput
from pabal.stats import HubStats, LaneStats, read_stats

MAX_WAIT = {"relay": timedelta(minutes=1), "events": timedelta(minutes=5), "notifications": timedelta(minutes=5)}
"""How long the oldest entry of a lane may be due before it is reported. A relay callback expires after a minute."""
WORKER_LANES = ("events", "notifications")
"""Lanes that need a worker. Relay messages wait for their bots instead."""
SILENT_AFTER = 3 * HEARTBEAT_INTERVAL
"""Three missed heartbeats: the worker hangs, is disconnected or has died."""
MIN_FREE_DISK = 1 << 30
RATE_MINUTES = 5
"""Minutes a rate is averaged over, including the current one."""
MINUTE = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class LaneProgress:
    """The rates of a lane. `blocked` of the waiting entries are not delivered at the moment.

    `drain_time` is the estimate for the others, or None without one.
    """

    lane: LaneStats
    done_per_minute: float
    failed_per_minute: float
    blocked: int
    drain_time: timedelta | None


@dataclass(frozen=True, slots=True)
class HubStatus:
    """Everything `pabal status` shows, read at one moment."""

    lanes: Sequence[LaneProgress]
    processes: Sequence[ProcessInfo]
    backlogs: Sequence[SubscriptionBacklog]
    silent_consumers: Sequence[SilentConsumer]
    failing_receivers: Sequence[FailingReceiver]
    blocked_keys: Sequence[BlockedKey]
    plain_claims: PlainClaims

    @property
    def hubs_at_work(self) -> list[ProcessInfo]:
        return [process for process in self.processes if process.silent < SILENT_AFTER]


async def read_status(tx: Tx) -> HubStatus:
    stats, throughput = await read_stats(tx), await last_hour_throughput(tx)
    backlogs = await list_subscription_backlogs(tx)
    stopped = {backlog.service for backlog in backlogs}
    silent = [consumer for consumer in await list_silent_consumers(tx) if consumer.service not in stopped]
    return HubStatus(
        lanes=measure_lanes(stats, throughput, backlogs),
        processes=await list_processes(tx),
        backlogs=backlogs,
        silent_consumers=silent,
        failing_receivers=await list_failing_receivers(tx),
        blocked_keys=await list_blocked_keys(tx),
        plain_claims=await count_plain_claims(tx),
    )


def measure_lanes(
    stats: HubStats, throughput: Mapping[str, Sequence[ThroughputMinute]], backlogs: Sequence[SubscriptionBacklog]
) -> list[LaneProgress]:
    return [
        measure_progress(
            lane, throughput[lane.name], count_blocked_events(stats, backlogs) if lane.name == "events" else 0
        )
        for lane in stats.lanes
    ]


def measure_progress(lane: LaneStats, throughput: Sequence[ThroughputMinute], blocked: int = 0) -> LaneProgress:
    """Compute the rates of a lane from its last minutes."""
    recent = throughput[-RATE_MINUTES:]
    minutes = sum((minute.elapsed for minute in recent), timedelta()) / MINUTE or 1.0
    done, dead = sum(minute.done for minute in recent) / minutes, sum(minute.dead for minute in recent) / minutes
    failed = sum(minute.failed for minute in recent) / minutes + dead
    ended, moving = done + dead, max(lane.waiting - blocked, 0)
    return LaneProgress(lane, done, failed, blocked, MINUTE * (moving / ended) if ended and moving else None)


def count_blocked_events(stats: HubStats, backlogs: Sequence[SubscriptionBacklog]) -> int:
    """Count the events that are not delivered because their subscription is stopped or no handler takes them.

    Two subscriptions of a service may wait for the same events, so only the largest number per service counts. If
    counting stopped at its limit, all waiting events may be blocked.
    """
    if any(backlog.count >= MAX_BACKLOG_COUNT for backlog in backlogs):
        return stats.lane("events").waiting
    counts: dict[str, int] = {}
    for backlog in (*backlogs, *stats.unhandled):
        counts[backlog.service] = max(backlog.count, counts.get(backlog.service, 0))
    return sum(counts.values())


def status_findings(status: HubStatus) -> list[Finding]:
    """What the rows of the hub say, one finding per subject. Every warning needs attention."""
    return [
        check_processes(status.hubs_at_work, status.processes),
        *check_wakeups(status.hubs_at_work),
        check_lanes(status.lanes),
        check_dead_letters(status.lanes),
        check_silent_consumers(status.silent_consumers),
        check_receivers(status.failing_receivers, status.backlogs),
        check_blocked_keys(status.blocked_keys),
        *check_plain_claims(status.plain_claims),
        *check_text_keys(status.hubs_at_work),
    ]


async def check_status(options: ConnectOptions) -> AsyncIterator[Finding]:
    """The findings of the status, for the doctor."""
    try:
        async with Database(options) as db, db.autocommit() as tx:
            findings = status_findings(await read_status(tx))
    except PabalError as error:
        seen, advice = Message("not checked: {}", error), Message("fix that error, then run `pabal doctor` again")
        yield Finding(FindingLevel.WARNING, "lanes", seen, advice)
        return
    for finding in findings:
        yield finding


def check_processes(at_work: Sequence[ProcessInfo], processes: Sequence[ProcessInfo]) -> Finding:
    if not at_work:
        advice = Message("start the hub, or `pabal work`")
        return Finding(FindingLevel.WARNING, "hubs", Message("no hub is running"), advice)
    silent = [process for process in processes if process not in at_work]
    if silent:
        names = join_messages(Message("{} for {}", process.id, duration_message(process.silent)) for process in silent)
        return Finding(
            FindingLevel.WARNING,
            "hubs",
            Message("without a heartbeat: {}", names),
            Message("check the log of that process and restart it"),
        )
    return Finding(FindingLevel.GOOD, "hubs", Message("{} running", len(at_work)))


def check_wakeups(at_work: Sequence[ProcessInfo]) -> Iterator[Finding]:
    """Whether the processes that should be on NATS are. The others are named too: NOTIFY costs all of them."""
    if not any(process.uses_nats for process in at_work):
        return
    lost = [process.id for process in at_work if process.lacks_nats]
    if lost:
        seen = Message("without NATS, so wake-ups use NOTIFY: {}", ", ".join(lost))
        advice = Message("check PABAL_DOORBELL and that the NATS server is running")
        yield Finding(FindingLevel.WARNING, "wake-ups", seen, advice)
    elif others := [process.id for process in at_work if not process.uses_nats]:
        seen = Message("PABAL_DOORBELL is not set for {}", ", ".join(others))
        yield Finding(
            FindingLevel.WARNING, "wake-ups", seen, Message("set PABAL_DOORBELL to the same servers for all processes")
        )
    else:
        yield Finding(FindingLevel.GOOD, "wake-ups", Message("all processes are on NATS: {}", len(at_work)))


def check_lanes(lanes: Sequence[LaneProgress]) -> Finding:
    """Whether the oldest entry of each lane is young. Emptying a long queue is fine; waiting is not."""
    late = [item.lane for item in lanes if item.lane.waiting and item.lane.oldest_due >= MAX_WAIT[item.lane.name]]
    if not late:
        return Finding(FindingLevel.GOOD, "lanes", Message("no entry waits too long"))
    texts = [Message("{} for {}", lane.name, duration_message(lane.oldest_due)) for lane in late]
    return Finding(
        FindingLevel.WARNING,
        "lanes",
        Message("the oldest entry waits: {}", join_messages(texts)),
        Message("see what it waits for with `pabal event show`, `pabal message show` or `pabal notification show`"),
    )


def check_dead_letters(lanes: Iterable[LaneProgress]) -> Finding:
    count = next(item.lane.dead for item in lanes if item.lane.name == "events")
    if not count:
        return Finding(FindingLevel.GOOD, "dead letters", Message("none"))
    advice = Message("run `pabal dead-letter groups`, fix the cause, then replay or resolve them")
    return Finding(FindingLevel.WARNING, "dead letters", Message("{} unresolved", count), advice)


def check_silent_consumers(consumers: Sequence[SilentConsumer]) -> Finding:
    if not consumers:
        return Finding(FindingLevel.GOOD, "consumers", Message("every service with waiting events claims them"))
    texts = [
        Message("{} has claimed nothing for {}", consumer.service, duration_message(silent_for(consumer)))
        if consumer.is_active
        else Message("{} is disabled, events waiting: {}", consumer.service, consumer.waiting)
        for consumer in consumers
    ]
    return Finding(
        FindingLevel.WARNING,
        "consumers",
        join_messages(texts),
        Message(
            "start the consumers of these services, or subscribe a receiver; "
            "enable a disabled one with `pabal service enable`"
        ),
    )


def silent_for(consumer: SilentConsumer) -> timedelta:
    """How long a consumer has left due events alone."""
    return consumer.oldest_due if consumer.claimed_ago is None else min(consumer.oldest_due, consumer.claimed_ago)


def check_receivers(receivers: Sequence[FailingReceiver], backlogs: Sequence[SubscriptionBacklog]) -> Finding:
    texts = [
        Message("{} is disabled: {}", receiver.service, receiver.disabled_reason or "?")
        if receiver.state == "disabled"
        else Message("{} is failing, attempts in a row: {}", receiver.service, receiver.failures)
        for receiver in receivers
    ]
    texts += [
        Message("{} is paused, events waiting: {}", backlog.service, backlog.count)
        for backlog in backlogs
        if backlog.state == "paused"
    ]
    if not texts:
        return Finding(FindingLevel.GOOD, "receivers", Message("none is failing"))
    advice = Message("run `pabal subscription list`, repair the receiver, then `pabal subscription resume`")
    return Finding(FindingLevel.WARNING, "receivers", join_messages(texts), advice)


def check_blocked_keys(keys: Sequence[BlockedKey]) -> Finding:
    """Name ordering keys that wait for a retry. A short wait needs no person."""
    if not keys:
        return Finding(FindingLevel.GOOD, "ordering keys", Message("none waits for a retry"))
    seen = join_messages(
        Message(
            "{} holds the ordering key {} of {}, events behind it: {}, next try in {}",
            key.event_id,
            key.ordering_key,
            key.service,
            key.waiting,
            duration_message(key.next_try),
        )
        for key in keys
    )
    if all(key.blocked_for + key.next_try < MAX_WAIT["events"] for key in keys):
        return Finding(FindingLevel.GOOD, "ordering keys", seen)
    advice = Message("see why it fails with `pabal event show`; `pabal event cancel` lets the events behind it go on")
    return Finding(FindingLevel.WARNING, "ordering keys", seen, advice)


def check_plain_claims(claims: PlainClaims) -> Iterator[Finding]:
    """Name events that plain SQL holds. They come back by themselves, so nothing has to be done."""
    if claims.count:
        oldest = duration_message(claims.oldest)
        seen = Message("{} in processing, the oldest for {}", claims.count, oldest)
        yield Finding(FindingLevel.GOOD, "claims by SQL", seen)


def check_text_keys(processes: Iterable[ProcessInfo]) -> Iterator[Finding]:
    """Name processes that cannot decrypt the texts of accounts: their messages wait, and their texts are not shown."""
    texts = [
        Message("{} cannot decrypt the keys of some accounts: {}", process.id, process.details.unreadable_keys)
        for process in processes
        if process.details.unreadable_keys
    ]
    if texts:
        advice = Message("restore keys.json or PABAL_KEYS of that hub; until then the messages of these accounts wait")
        yield Finding(FindingLevel.WARNING, "relay texts", join_messages(texts), advice)


def check_free_space(data_dir: Path) -> Finding:
    folder = data_dir
    while not folder.exists():  # before the first start
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    seen = Message("{} GiB free in {}", f"{free / 2**30:.1f}", data_dir)
    if free < MIN_FREE_DISK:
        return Finding(FindingLevel.WARNING, "disk", seen, Message("free disk space, or move PABAL_DATA_DIR"))
    return Finding(FindingLevel.GOOD, "disk", seen)
