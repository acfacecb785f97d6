"""Builds the hub: the only module that knows everybody."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any, assert_never

from pabal import __version__
from pabal.core.actor import HUB
from pabal.core.errors import Failed
from pabal.core.metrics import Metrics
from pabal.db.bells import Bell
from pabal.db.doorbell import Doorbell
from pabal.db.pool import Database, Reach
from pabal.db.tx import Tx
from pabal.events.handle import Handled, Handlers
from pabal.events.lane import LANE, HeldEvent
from pabal.events.publish import Draft, Published, publish
from pabal.events.pull import Waiting as EventsWanted
from pabal.events.pull import claim_for
from pabal.events.push import Gone, Post, Pusher, Pushes, Send
from pabal.events.together import Together, at_settling
from pabal.keys import ring
from pabal.keys.file import there
from pabal.keys.ring import Ring
from pabal.keys.traces import used
from pabal.notifications import catalogue
from pabal.notifications.alarms import Operator
from pabal.notifications.apply import apply
from pabal.notifications.board import Board
from pabal.notifications.catalogue import Catalogue
from pabal.notifications.discord import Discord, DryRun, Outlet
from pabal.notifications.dispatch import Dispatcher
from pabal.notifications.hands import HANDS
from pabal.notifications.settle import Dispatches
from pabal.outside import discord, kakao, webhook
from pabal.outside.guard import Origins
from pabal.outside.http import Outside
from pabal.queue.census import Census
from pabal.queue.chores import Chores
from pabal.queue.desk import Desk
from pabal.queue.gatherer import Gatherer
from pabal.queue.outcome import Dead, Done, Outcome, Retry
from pabal.queue.pulse import Pulse
from pabal.queue.roll import myself, on_the_roll
from pabal.queue.worker import Pace, Whom, Worker
from pabal.relay import callback
from pabal.relay.callback import Callbacks, Ending, Posted
from pabal.relay.figures import Figures
from pabal.relay.lane import LANE as MESSAGES
from pabal.relay.lane import HeldMessage
from pabal.relay.lane import Waiting as MessagesWanted
from pabal.relay.recall import Recalls
from pabal.relay.receive import Brought, Received, Reception
from pabal.relay.reply import Replies
from pabal.relay.stall import Stall
from pabal.relay.switchboard import Switchboard
from pabal.relay.texts import texts
from pabal.settings import Settings
from pabal.tokens.mint import Mint
from pabal.tokens.verify import Verifier
from pabal.upkeep import alarms, chores


@dataclass(frozen=True, slots=True)
class Roads:
    """The ways to the database: one for the work, one past any pooler for LISTEN and migrations."""

    work: str = field(repr=False)
    direct: str | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class Relay:
    """The relay's moving parts in one process."""

    reception: Gatherer[Brought, Received]
    desk: Desk[MessagesWanted, HeldMessage]
    switchboard: Switchboard
    callbacks: Callbacks
    replies: Replies
    figures: Figures
    recalls: Recalls


@dataclass(frozen=True, slots=True)
class Hub:
    """A running hub: what doors, commands and workers are given."""

    settings: Settings
    roads: Roads
    db: Database
    doorbell: Doorbell
    census: Census
    chores: Chores
    metrics: Metrics
    keys: Ring
    mint: Mint
    tokens: Verifier
    publisher: Gatherer[Draft, Published]
    desk: Desk[EventsWanted, HeldEvent]
    outside: Outside
    pusher: Pusher
    relay: Relay
    board: Board
    catalogue: Catalogue
    dispatcher: Dispatcher
    closing: asyncio.Event
    """Set when the hub begins to stop: open streams end themselves."""

    def transaction(self) -> AbstractAsyncContextManager[Tx]:
        return self.db.transaction()

    def autocommit(self) -> AbstractAsyncContextManager[Tx]:
        return self.db.autocommit()

    async def send_home(self) -> None:
        """Begin to stop: whoever waits goes home, with nothing and without an error."""
        self.closing.set()
        self.relay.switchboard.hang_up()
        self.board.hang_up()
        await self.desk.close()
        await self.relay.desk.close()


def reach(settings: Settings, url: str, *, pooler: bool | None = None) -> Reach:
    return Reach(
        url,
        size=settings.database_pool_size,
        connect_timeout=settings.connect_timeout,
        statement_timeout=settings.statement_timeout,
        pooler=pooler,
    )


@asynccontextmanager
async def open_hub(settings: Settings, roads: Roads) -> AsyncGenerator[Hub]:
    """Open the database and everything that lives beside it; close it all again, in the other order."""
    async with AsyncExitStack() as stack:
        db = Database(reach(settings, roads.work, pooler=settings.database_pooler))
        stack.push_async_callback(db.close)
        await db.open()
        keys = await keys_of(settings, db)
        direct = roads.direct or (None if db.ground.pooler else roads.work)
        doorbell = Doorbell(db, reach(settings, direct, pooler=False) if direct else None)
        db.on_commit = doorbell.pass_on
        pulse = Pulse(db)
        stack.push_async_callback(pulse.close)  # after everybody who counts
        await pulse.open()
        db.on_counted = pulse.count
        metrics = Metrics(__version__)
        stack.callback(metrics.close)
        census = Census(db)
        census.show(metrics.meter)
        mint = Mint(keys, settings.issuer, settings.token_audience)
        ear = stack.enter_context(doorbell.hear(Bell.TOKENS))
        origins = Origins.of(settings.callback_allow)
        outside = await stack.enter_async_context(Outside(origins))
        to_kakao = await stack.enter_async_context(Outside(origins, idle=kakao.IDLE))  # no slow receiver is in its way
        relay = relay_of(settings, db, doorbell, metrics, to_kakao)
        templates = catalogue.read(settings.templates)
        operator = Operator(templates, settings.operator_channel)
        to_discord = await stack.enter_async_context(Outside(discord_origins(settings)))
        hub = Hub(
            settings=settings,
            roads=roads,
            db=db,
            doorbell=doorbell,
            census=census,
            chores=Chores(db, (*chores(settings, keys, relay.figures), *alarms(settings, operator))),
            metrics=metrics,
            keys=keys,
            mint=mint,
            tokens=Verifier(db, mint, ear),
            publisher=Gatherer(db, publish),
            desk=Desk(db, doorbell, Bell.EVENTS, claim_for, LANE.release),
            outside=outside,
            pusher=Pusher(db, keys, sender(outside)),
            relay=relay,
            board=Board(db, doorbell),
            catalogue=templates,
            dispatcher=Dispatcher(db, templates, outlet_of(settings, db, to_discord), settings.chat_language),
            closing=asyncio.Event(),
        )
        stack.push_async_callback(doorbell.close)
        await doorbell.open()
        stack.push_async_callback(hub.publisher.close)
        stack.push_async_callback(hub.desk.close)
        stack.push_async_callback(close_relay, hub.relay, settings.stop_within)
        stack.push_async_callback(hub.board.finish)
        stack.callback(hub.closing.set)
        yield hub


def relay_of(settings: Settings, db: Database, doorbell: Doorbell, metrics: Metrics, to_kakao: Outside) -> Relay:
    reception = Reception(settings.queue_life, settings.webhook_per_conversation, settings.webhook_per_channel)
    desk = Desk(db, doorbell, Bell.MESSAGES, MESSAGES.claim_for, MESSAGES.release, topic=lambda who: who.topic)
    switchboard = Switchboard(db, doorbell, desk)
    figures = Figures(metrics.meter)
    callbacks = Callbacks(db, poster(to_kakao), figures)
    return Relay(
        reception=Gatherer(db, reception.receive),
        desk=desk,
        switchboard=switchboard,
        callbacks=callbacks,
        replies=Replies(db, callbacks, switchboard.settled),
        figures=figures,
        recalls=Recalls(db),
    )


async def close_relay(relay: Relay, within: timedelta) -> None:
    await relay.reception.close()
    await relay.recalls.finish(within)
    await relay.replies.close()
    await relay.callbacks.close()
    await relay.switchboard.finish()
    await relay.desk.close()


def workers(hub: Hub, handlers: Handlers | None = None) -> list[Worker[Any] | Stall]:
    """Everybody who works in a process that works: each is to be run until it is told to stop."""
    me = myself()
    pace = Pace(grace=hub.settings.stop_within)
    employed: list[Worker[Any] | Stall] = [
        Worker(f"push:{me}", Pushes(), hub.db, hub.doorbell, hub.pusher.handle, hub.pusher.rota, pace),
        Worker(f"rules:{me}", ruled(hub.catalogue), hub.db, hub.doorbell, at_settling, for_the_hub, pace),
        Worker(
            f"dispatch:{me}",
            Dispatches(),
            hub.db,
            hub.doorbell,
            hub.dispatcher.handle,
            hub.dispatcher.rota,
            replace(pace, hands=HANDS),
        ),
    ]
    if after := hub.settings.still_working_after:
        employed.append(Stall(f"stall:{me}", hub.db, hub.relay.callbacks, texts(hub.settings.chat_language), after))
    if handlers:
        theirs = Pace(hands=handlers.hands, grace=hub.settings.stop_within, longest=handlers.longest)
        rota = partial(handlers.rota, hub.db)
        employed.append(Worker(f"handlers:{me}", Handled(), hub.db, hub.doorbell, handlers.handle, rota, theirs))
    return employed


def ruled(templates: Catalogue) -> Together:
    """The events that are owed to the hub: what its rules make of one is made as it is settled."""

    async def work(tx: Tx, events: Sequence[HeldEvent]) -> Sequence[Outcome]:
        return await apply(tx, events, templates)

    return Together(work)


async def for_the_hub() -> Sequence[Whom]:
    return ({"service": HUB.name},)


def on_roll(
    hub: Hub, employed: Sequence[Worker[Any] | Stall], handlers: Handlers | None = None
) -> AbstractAsyncContextManager[None]:
    """The process and its workers on the roll, for as long as the block lasts."""
    claiming = [each for each in employed if isinstance(each, Worker)]

    async def report(tx: Tx) -> dict[str, Any]:
        said: dict[str, Any] = {"version": __version__, "holds": sum(worker.holds for worker in claiming)}
        if handlers:
            await handlers.seen(tx)
            said |= {"program": handlers.program, "handlers": handlers.taken}
        return said

    return on_the_roll(hub.db, sorted({worker.lane.name for worker in claiming}), report)


def outlet_of(settings: Settings, db: Database, to_discord: Outside) -> Outlet:
    """Where notices for Discord go: to its API, or into the log when there is no token."""
    if settings.discord_token is None or not (token := settings.discord_token.get_secret_value()):
        return DryRun()
    return Discord(db, discord.Discord(to_discord, token, settings.discord_api_url))


def discord_origins(settings: Settings) -> Origins:
    """Discord itself is reached like anybody; a stand-in may be anywhere, because the operator named it."""
    return Origins() if settings.discord_api_url == discord.API else Origins.of([settings.discord_api_url])


def sender(outside: Outside) -> Send:
    """How a push goes out: as a signed webhook."""

    async def send(post: Post) -> Outcome | Gone:
        read = await webhook.deliver(
            outside,
            post.url,
            post.secrets,
            message=post.message,
            at=post.at,
            body=post.body,
            within=post.within,
            traceparent=post.traceparent,
        )
        match read:
            case Dead(why):
                return Gone(why)
            case Done() | Retry():
                return read
            case _:
                assert_never(read)

    return send


def poster(outside: Outside) -> callback.Post:
    """How an answer goes out: to Kakao, once."""

    async def post(url: str, body: bytes) -> Posted:
        became = await kakao.answer(outside, url, body)
        match became:
            case kakao.Sent(status, said):
                return Posted(Ending.SENT, None, status, said)
            case kakao.Refused(why, status, said):
                return Posted(Ending.REFUSED, why, status, said)
            case kakao.Unknown(why, status):
                return Posted(Ending.UNKNOWN, why, status)
            case kakao.NotSent(why):
                return Posted(Ending.UNSENT, why)
            case _:
                assert_never(became)

    return post


async def keys_of(settings: Settings, db: Database) -> Ring:
    """The keys from the settings, or those in the data folder, which a first start makes."""
    if settings.keys:
        return ring.from_setting(settings.keys.get_secret_value())
    kept = settings.data_dir / ring.FILE
    if not there(kept):
        async with db.autocommit() as tx:
            if await used(tx):
                raise Failed(
                    f"this database was written with keys that are not here: bring them to {kept}, or set PABAL_KEYS"
                )
    return ring.from_folder(settings.data_dir)
