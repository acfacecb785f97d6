"""The doorbell: waiting that holds no connection, and wakeups between processes.

A wakeup reaches the listeners of this process at once. Other processes get it after the commit, many wakeups in one
payload: a NOTIFY inside every transaction would take a database-wide lock at commit. A wakeup may be lost, so listeners
wait with a timeout and then read the table.

Wakeups travel by NOTIFY, or by NATS if it is configured and connected. Plain SQL always uses NOTIFY. Therefore one of
the processes on NATS listens too and forwards what it hears: the oldest one, by its id. While it hears listeners that
are not on NATS, it also forwards the other way. A payload that was forwarded, or needs no forwarding, has a sender that
begins with `+`.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from time import monotonic
from typing import Self

from pabal.core.errors import PabalError
from pabal.core.ids import new_id
from pabal.core.log import get_logger
from pabal.core.nats_url import NatsServer
from pabal.db.connect import ConnectOptions
from pabal.db.doorbell.channels import CHANNEL_NAMES, POLLED, Channel, Wakeup
from pabal.db.doorbell.load_polling import SQL_SENDER, LoadPolling
from pabal.db.doorbell.nats import NATS_PING_INTERVAL, NatsTransport
from pabal.db.doorbell.notify import KEEPALIVE_INTERVAL, SELF_TEST_TIMEOUT, NotifyTransport
from pabal.db.doorbell.outbox import WakeupOutbox, encode_wakeups
from pabal.db.doorbell.transport import FORWARDED, DoorbellTransport
from pabal.db.pool import Database
from pabal.db.queries import load_queries
from pabal.db.waiting import stop_tasks, wait_with_timeout

Q = load_queries(__file__)
log = get_logger()

POLL_INTERVAL = timedelta(seconds=1)
"""How long to wait for a wakeup before polling the table."""
NOTIFY_INTERVAL = 0.005
"""Seconds between two notifications of a process. Each one costs PostgreSQL a commit and wakes all that listen."""
FORWARDING, NOT_FORWARDING = "forwarding", "not-forwarding"
"""What the forwarding process tells the others on NATS: regularly, and when it stops."""
MISSED_SIGNS = 3
"""After this many intervals without a sign, a forwarding or listening process counts as gone."""


class Doorbell:
    """Wakes listeners in this and other processes after a commit.

    `options` must connect to the database directly, because LISTEN does not work through a transaction pooler. With
    None and without NATS, listeners only poll.
    """

    def __init__(
        self,
        db: Database,
        options: ConnectOptions | None,
        keepalive_interval: timedelta = KEEPALIVE_INTERVAL,
        nats: Sequence[NatsServer] = (),
    ) -> None:
        self._db = db
        self._sender_id = new_id().hex
        self._listeners: defaultdict[Channel, set[Listener]] = defaultdict(set)
        self._commit_notified_at = -NOTIFY_INTERVAL
        self._tasks: list[asyncio.Task[None]] = []
        self.load_polling = LoadPolling(
            db, self._sender_id, lambda: self.wake_here(Wakeup(Channel.EVENTS, POLLED)), self._announce_polling
        )
        self._notify = NotifyTransport(
            db,
            options,
            self._sender_id,
            self.load_polling,
            self._receive_notify,
            self._on_transport_change,
            keepalive_interval,
        )
        self._nats = NatsTransport(nats, self._find_subject, self._receive_nats, self._on_transport_change)
        self._has_nats = bool(nats)
        self._notify_outbox = WakeupOutbox(self._send_by_notify, NOTIFY_INTERVAL)
        self._nats_outbox = WakeupOutbox(self._send_by_nats)
        self._sign_due = asyncio.Event()
        """Set when the others should hear now whether this process forwards."""
        self._older_forwarder_until = 0.0
        """Until when another process is known to forward, which is older than this one."""
        self._notify_listeners_until = 0.0
        """Until when processes that are not on NATS may listen."""

    @property
    def listening(self) -> bool:
        """Whether wakeups of other processes arrive."""
        return self._nats.is_connected or self._notify.is_connected

    @property
    def transport(self) -> DoorbellTransport:
        if self._nats.is_connected:
            return "nats"
        return "notify" if self._notify.is_connected else "polling"

    @property
    def lacks_nats(self) -> bool:
        """Whether NATS is configured and does not respond."""
        return self._has_nats and not self._nats.is_connected

    @property
    def is_forwarding(self) -> bool:
        """Whether this process carries wakeups between NOTIFY and NATS."""
        return self._nats.is_connected and self._notify.is_connected

    async def open(self) -> None:
        self._choose_forwarder()
        loops = {"doorbell notifies": self._notify_outbox.run(), "doorbell listens": self._notify.run()}
        if self._has_nats:
            loops |= {
                "doorbell sends": self._nats_outbox.run(),
                "doorbell on nats": self._nats.run(),
                "doorbell forwards": self._forward_loop(),
            }
        self._tasks += [asyncio.create_task(loop, name=name) for name, loop in loops.items()]

    async def close(self) -> None:
        """Stop listening and send the pending wakeups: a command may end right after its commit."""
        if self._nats.is_connected:
            with suppress(PabalError):
                await self._nats_outbox.flush()
                if self.is_forwarding:
                    await self._nats.send(f"{FORWARDED}{self._sender_id} {NOT_FORWARDING}")
        await stop_tasks(self._tasks)
        self._tasks.clear()
        await self.load_polling.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(SELF_TEST_TIMEOUT.total_seconds()):
                await self._nats_outbox.flush()
                await self._notify_outbox.flush()

    def notify(self, channels: Iterable[Channel]) -> None:
        """Wake all listeners of these channels."""
        self.broadcast(map(Wakeup, channels))

    def broadcast(self, wakeups: Iterable[Wakeup]) -> None:
        """Wake this process now and the others soon. Call it after the commit."""
        wakeups = [*wakeups]
        for wakeup in wakeups:
            self.wake_here(wakeup)
        self.send(wakeups)

    def send(self, wakeups: Iterable[Wakeup]) -> None:
        """Wake the other processes soon, and not this one."""
        wakeups = [*wakeups]
        if self._nats.is_connected:
            self._nats_outbox.add(wakeups)
        if not self._nats.is_connected or self._forwards_to_notify():
            self._notify_outbox.add(wakeups)

    @property
    def can_notify_at_commit(self) -> bool:
        """Whether a statement may notify at its own commit. Otherwise NATS or a later notification is better."""
        is_too_soon = monotonic() - self._commit_notified_at < NOTIFY_INTERVAL
        return not (self._nats.is_connected or self._notify_outbox.has_pending or is_too_soon)

    def reserve_commit_notification(self) -> str | None:
        """Our name as a sender, for a statement that notifies at its own commit; None if a later one is better.

        It saves the waiter a round trip, and it holds a database-wide lock during the commit's write to disk.
        """
        if not self.can_notify_at_commit:
            return None
        self._commit_notified_at = monotonic()
        return self._notify.sender

    def note_rows(self, channel: Channel) -> None:
        """Rows of this channel were claimed: under load, this process polls for them at the short interval."""
        if channel is Channel.EVENTS:
            self.load_polling.note_rows()

    async def wait(self, channel: Channel, timeout: timedelta) -> bool:
        """Wait up to `timeout` for a wakeup. Returns whether there was one."""
        with self.listen(channel) as listener:
            return await listener.wait(timeout)

    def listen(self, *channels: Channel, on_wakeup: Callable[[str], bool] | None = None) -> "Listener":
        """Start listening now and wait later, without missing wakeups in between.

        `on_wakeup` is called with the topic of every wakeup and returns whether it concerns the listener.
        """
        return Listener([self._listeners[channel] for channel in channels], on_wakeup)

    def wake_here(self, wakeup: Wakeup) -> None:
        """Wake the listeners of this process only."""
        if wakeup.channel is Channel.POLLING:
            self.load_polling.poll_for()
        for listener in self._listeners[wakeup.channel]:
            listener.receive(wakeup.topic)

    async def _send_by_notify(self, wakeups: set[Wakeup]) -> None:
        try:
            await self._notify.send(" ".join([self._notify.sender, *encode_wakeups(wakeups)]))
        except PabalError as error:
            log.warning("notify lost", error=str(error))

    async def _send_by_nats(self, wakeups: set[Wakeup]) -> None:
        sender = FORWARDED + self._sender_id if self.is_forwarding else self._sender_id
        try:
            await self._nats.send(" ".join([sender, *encode_wakeups(wakeups)]))
        except PabalError:
            self._notify_outbox.add(wakeups)

    def _announce_polling(self) -> None:
        if self._nats.is_connected:
            self._nats_outbox.add([Wakeup(Channel.POLLING)])

    async def _find_subject(self) -> str:
        async with self._db.autocommit() as tx:
            return f"pabal.{await tx.value(Q.identify_database)}"

    def _on_transport_change(self) -> None:
        """Wake everything: wakeups may have been missed. On NATS, let an older process listen for NOTIFY."""
        self._notify.sender = FORWARDED + self._sender_id if self._nats.is_connected else self._sender_id
        self._choose_forwarder()
        self._sign_due.set()
        if self.is_forwarding:  # it has just begun, and those that listen are heard every few seconds
            self._expect_notify_listeners()
        if self.listening:
            for channel in set(Channel) - {Channel.POLLING}:
                self.wake_here(Wakeup(channel))

    async def _forward_loop(self) -> None:
        """Tell the others regularly that this process forwards, so that they need not listen for NOTIFY."""
        while True:
            self._sign_due.clear()
            self._choose_forwarder()
            if self.is_forwarding:
                with suppress(PabalError):
                    await self._nats.send(f"{FORWARDED}{self._sender_id} {FORWARDING}")
            await wait_with_timeout(self._sign_due, NATS_PING_INTERVAL)

    def _choose_forwarder(self) -> None:
        has_forwarder = self._nats.is_connected and monotonic() < self._older_forwarder_until
        self._notify.listen_if(wanted=self._nats.was_tried and not has_forwarder)

    def _forwards_to_notify(self) -> bool:
        """Whether this process forwards, and there are listeners that are not on NATS."""
        return self.is_forwarding and monotonic() < self._notify_listeners_until

    def _expect_notify_listeners(self) -> None:
        self._notify_listeners_until = monotonic() + MISSED_SIGNS * KEEPALIVE_INTERVAL.total_seconds()

    def _receive_notify(self, payload: str) -> None:
        """Wake listeners for a notification. Any client can NOTIFY, so unknown payloads are ignored."""
        sender, _, text = payload.partition(" ")
        if sender.removeprefix(FORWARDED) == self._sender_id:
            return
        if not text and sender in CHANNEL_NAMES:  # a trigger that names only the channel
            text = sender
        if sender == SQL_SENDER:
            self.load_polling.count_notification()
        wakeups = self._wake_listeners(text)
        if not self.is_forwarding or sender.startswith(FORWARDED):
            return
        if not text:  # the self-test of another listener
            self._expect_notify_listeners()
        self._nats_outbox.add(wakeups)

    def _receive_nats(self, payload: str) -> None:
        """Wake listeners for a payload of another process."""
        sender, _, text = payload.partition(" ")
        sender_id = sender.removeprefix(FORWARDED)
        if sender_id == self._sender_id:
            return
        if text in {FORWARDING, NOT_FORWARDING}:
            self._receive_sign(sender_id, is_forwarding=text == FORWARDING)
            return
        wakeups = self._wake_listeners(text)
        if self._forwards_to_notify() and not sender.startswith(FORWARDED):
            self._notify_outbox.add(wakeups)

    def _receive_sign(self, sender_id: str, *, is_forwarding: bool) -> None:
        """Ids grow with time: if an older process forwards, this one need not. A younger one is told the same."""
        if sender_id > self._sender_id:
            self._sign_due.set()
            return
        signs = MISSED_SIGNS if is_forwarding else 0
        self._older_forwarder_until = monotonic() + signs * NATS_PING_INTERVAL.total_seconds()
        self._choose_forwarder()

    def _wake_listeners(self, text: str) -> list[Wakeup]:
        """Wake the listeners of this process. Returns the wakeups, without those that are not known here."""
        wakeups = [wakeup for wakeup in map(Wakeup.parse, text.split()) if wakeup is not None]
        for wakeup in wakeups:
            self.wake_here(wakeup)
        return wakeups


class Listener:
    """Receives wakeups of one or more channels."""

    def __init__(self, registries: "Sequence[set[Listener]]", on_wakeup: Callable[[str], bool] | None = None) -> None:
        self._registries = registries
        self._on_wakeup = on_wakeup
        self._woken = asyncio.Event()
        self._topics: set[str] = set()

    def __enter__(self) -> Self:
        for registry in self._registries:
            registry.add(self)
        return self

    def __exit__(self, *exc: object) -> None:
        for registry in self._registries:
            registry.discard(self)

    def receive(self, topic: str) -> None:
        """Wake this listener if the wakeup concerns it."""
        if self._on_wakeup is None or self._on_wakeup(topic):
            self.wake(topic)

    def wake(self, topic: str = "") -> None:
        """Wake this listener only."""
        self._topics.add(topic)
        self._woken.set()

    def take_wakeup(self) -> bool:
        """Return whether there was a wakeup since the last call, and reset it."""
        woken = self._woken.is_set()
        if woken:
            self._woken.clear()
            self._topics.clear()
        return woken

    def take_topics(self) -> set[str]:
        """Return the topics of the wakeups since the last call, and reset them. The empty topic stands for all."""
        topics, self._topics = self._topics, set()
        self._woken.clear()
        return topics

    async def wait(self, timeout: timedelta) -> bool:
        """Wait up to `timeout` for a wakeup, and reset it."""
        await wait_with_timeout(self._woken, timeout)
        return self.take_wakeup()  # also counts a wakeup that arrived together with the timeout

    async def wait_for_topics(self, timeout: timedelta) -> bool:
        """Wait up to `timeout` for a wakeup, which `take_topics` then resets."""
        return await wait_with_timeout(self._woken, timeout)
