"""Builds the hub: the only module that knows everybody."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any, assert_never

from pabal import __version__
from pabal.core.actor import HUB_ACTOR
from pabal.core.errors import SetupError
from pabal.core.metrics import Metrics
from pabal.db.channels import Channel
from pabal.db.doorbell import Doorbell
from pabal.db.pool import ConnectOptions, Database
from pabal.db.tx import Tx
from pabal.db.urls import DatabaseUrls
from pabal.events.handlers import EventHandlers, HandlerLane
from pabal.events.lane import LANE, ClaimedEvent
from pabal.events.publish import EventDraft, PublishResult, publish_events
from pabal.events.pull import EventPollRequest as EventsWanted
from pabal.events.pull import claim_events_for_polls
from pabal.events.push import Pusher, PushLane, PushRequest, ReceiverGone, SendPush
from pabal.events.transactional import TransactionalLane, noop_handler
from pabal.keys import keyring
from pabal.keys.keyring import KeyRing, key_file_exists, keyring_from_setting, open_or_create_keyring
from pabal.keys.rotation import database_uses_keys
from pabal.maintenance import build_alert_chores, build_chores
from pabal.notifications.apply_rules import apply_rules
from pabal.notifications.discord import DiscordSender, DryRunSender, MessageSender
from pabal.notifications.dispatch import DISPATCH_CONCURRENCY, NotificationDispatcher
from pabal.notifications.operator_alerts import AlertTarget
from pabal.notifications.settle import NotificationDispatchLane
from pabal.notifications.templates import TemplateCatalogue, load_templates
from pabal.notifications.toast_streams import ToastStreams
from pabal.outside import discord, kakao
from pabal.outside.discord import DiscordApi
from pabal.outside.http import HttpClient
from pabal.outside.kakao import KakaoAccepted, KakaoNotSent, KakaoRefused, KakaoUnknown, post_kakao_callback
from pabal.outside.ssrf import AllowedOrigins
from pabal.outside.webhook import post_webhook
from pabal.queue.batcher import Batcher
from pabal.queue.chores import ChoreRunner
from pabal.queue.long_poll import LongPoll
from pabal.queue.outcome import Dead, Done, Outcome, Retry
from pabal.queue.processes import process_name, registered_process
from pabal.queue.throughput import ThroughputCounter
from pabal.queue.worker import ClaimFilter, Worker, WorkerConfig
from pabal.relay.delivery.lane import LANE as MESSAGES
from pabal.relay.delivery.lane import ClaimedMessage
from pabal.relay.delivery.lane import MessagePollRequest as MessagesWanted
from pabal.relay.delivery.stream_registry import StreamRegistry
from pabal.relay.metrics import RelayMetrics
from pabal.relay.reply.callback import CallbackOutcome, CallbackResult, CallbackSender, PostCallback
from pabal.relay.reply.reply import ReplySender
from pabal.relay.reply.stall import StallWorker
from pabal.relay.webhook.recall import CallbackRecaller
from pabal.relay.webhook.receive import InboundDraft, ReceiveResult, WebhookReceiver
from pabal.relay.webhook.skill_response import chat_texts
from pabal.settings import Settings
from pabal.stats import StatsReader
from pabal.tokens.access import TokenIssuer
from pabal.tokens.verify import TokenVerifier


@dataclass(frozen=True, slots=True)
class RelayServices:
    """The relay's moving parts in one process."""

    webhook_batcher: Batcher[InboundDraft, ReceiveResult]
    long_poll: LongPoll[MessagesWanted, ClaimedMessage]
    stream_registry: StreamRegistry
    callbacks: CallbackSender
    replies: ReplySender
    metrics: RelayMetrics
    recalls: CallbackRecaller


@dataclass(frozen=True, slots=True)
class Hub:
    """A running hub: what doors, commands and workers are given."""

    settings: Settings
    database_urls: DatabaseUrls
    db: Database
    doorbell: Doorbell
    stats: StatsReader
    chores: ChoreRunner
    metrics: Metrics
    key_ring: KeyRing
    token_issuer: TokenIssuer
    token_verifier: TokenVerifier
    publisher: Batcher[EventDraft, PublishResult]
    event_long_poll: LongPoll[EventsWanted, ClaimedEvent]
    http_client: HttpClient
    pusher: Pusher
    relay: RelayServices
    toast_streams: ToastStreams
    templates: TemplateCatalogue
    dispatcher: NotificationDispatcher
    closing: asyncio.Event
    """Set when the hub begins to stop: open streams end themselves."""

    def transaction(self) -> AbstractAsyncContextManager[Tx]:
        return self.db.transaction()

    def autocommit(self) -> AbstractAsyncContextManager[Tx]:
        return self.db.autocommit()

    async def begin_shutdown(self) -> None:
        """Begin to stop: whoever waits goes home, with nothing and without an error."""
        self.closing.set()
        self.relay.stream_registry.close_all()
        self.toast_streams.close_all()
        await self.event_long_poll.close()
        await self.relay.long_poll.close()


def connect_options(settings: Settings, url: str, *, pooler: bool | None = None) -> ConnectOptions:
    return ConnectOptions(
        url,
        pool_size=settings.database_pool_size,
        connect_timeout=settings.connect_timeout,
        statement_timeout=settings.statement_timeout,
        pooler=pooler,
    )


@asynccontextmanager
async def open_hub(settings: Settings, database_urls: DatabaseUrls) -> AsyncGenerator[Hub]:
    """Open the database and everything that lives beside it; close it all again, in the other order."""
    async with AsyncExitStack() as stack:
        db = Database(connect_options(settings, database_urls.main, pooler=settings.database_pooler))
        stack.push_async_callback(db.close)
        await db.open()
        keys = await load_hub_keys(settings, db)
        direct = database_urls.direct or (None if db.server_info.pooler else database_urls.main)
        doorbell = Doorbell(db, connect_options(settings, direct, pooler=False) if direct else None)
        db.on_commit = doorbell.broadcast
        pulse = ThroughputCounter(db)
        stack.push_async_callback(pulse.close)  # after everybody who counts
        await pulse.open()
        db.on_outcome_counts = pulse.add_counts
        metrics = Metrics(__version__)
        stack.callback(metrics.close)
        census = StatsReader(db)
        census.register_gauges(metrics.meter)
        mint = TokenIssuer(keys, settings.issuer, settings.token_audience)
        ear = stack.enter_context(doorbell.listen(Channel.TOKENS))
        origins = AllowedOrigins.of(settings.callback_allow)
        outside = await stack.enter_async_context(HttpClient(origins))
        to_kakao = await stack.enter_async_context(
            HttpClient(origins, idle_timeout=kakao.CALLBACK_IDLE_TIMEOUT)
        )  # no slow receiver is in its way
        relay = build_relay(settings, db, doorbell, metrics, to_kakao)
        templates = load_templates(settings.templates)
        operator = AlertTarget(templates, settings.operator_channel)
        to_discord = await stack.enter_async_context(HttpClient(allowed_discord_origins(settings)))
        hub = Hub(
            settings=settings,
            database_urls=database_urls,
            db=db,
            doorbell=doorbell,
            stats=census,
            chores=ChoreRunner(
                db, (*build_chores(settings, keys, relay.metrics), *build_alert_chores(settings, operator))
            ),
            metrics=metrics,
            key_ring=keys,
            token_issuer=mint,
            token_verifier=TokenVerifier(db, mint, ear),
            publisher=Batcher(db, publish_events),
            event_long_poll=LongPoll(db, doorbell, Channel.EVENTS, claim_events_for_polls, LANE.release),
            http_client=outside,
            pusher=Pusher(db, keys, build_push_sender(outside)),
            relay=relay,
            toast_streams=ToastStreams(db, doorbell),
            templates=templates,
            dispatcher=NotificationDispatcher(
                db, templates, build_discord_sender(settings, db, to_discord), settings.chat_language
            ),
            closing=asyncio.Event(),
        )
        stack.push_async_callback(doorbell.close)
        await doorbell.open()
        stack.push_async_callback(hub.publisher.close)
        stack.push_async_callback(hub.event_long_poll.close)
        stack.push_async_callback(close_relay, hub.relay, settings.stop_within)
        stack.push_async_callback(hub.toast_streams.stop)
        stack.callback(hub.closing.set)
        yield hub


def build_relay(
    settings: Settings, db: Database, doorbell: Doorbell, metrics: Metrics, kakao_client: HttpClient
) -> RelayServices:
    reception = WebhookReceiver(settings.queue_life, settings.webhook_per_conversation, settings.webhook_per_channel)
    desk = LongPoll(
        db, doorbell, Channel.MESSAGES, MESSAGES.claim_for_polls, MESSAGES.release, topic=lambda who: who.topic
    )
    switchboard = StreamRegistry(db, doorbell, desk)
    figures = RelayMetrics(metrics.meter)
    callbacks = CallbackSender(db, build_callback_sender(kakao_client), figures)
    return RelayServices(
        webhook_batcher=Batcher(db, reception.receive),
        long_poll=desk,
        stream_registry=switchboard,
        callbacks=callbacks,
        replies=ReplySender(db, callbacks, switchboard.remove_in_flight),
        metrics=figures,
        recalls=CallbackRecaller(db),
    )


async def close_relay(relay: RelayServices, time_limit: timedelta) -> None:
    await relay.webhook_batcher.close()
    await relay.recalls.drain(time_limit)
    await relay.replies.close()
    await relay.callbacks.close()
    await relay.stream_registry.drain()
    await relay.long_poll.close()


def build_workers(hub: Hub, handlers: EventHandlers | None = None) -> list[Worker[Any] | StallWorker]:
    """Everybody who works in a process that works: each is to be run until it is told to stop."""
    me = process_name()
    pace = WorkerConfig(shutdown_grace=hub.settings.stop_within)
    employed: list[Worker[Any] | StallWorker] = [
        Worker(f"push:{me}", PushLane(), hub.db, hub.doorbell, hub.pusher.handle, hub.pusher.schedule, pace),
        Worker(
            f"rules:{me}", build_rules_lane(hub.templates), hub.db, hub.doorbell, noop_handler, hub_claim_filters, pace
        ),
        Worker(
            f"dispatch:{me}",
            NotificationDispatchLane(),
            hub.db,
            hub.doorbell,
            hub.dispatcher.handle,
            hub.dispatcher.schedule,
            replace(pace, concurrency=DISPATCH_CONCURRENCY),
        ),
    ]
    if after := hub.settings.still_working_after:
        employed.append(
            StallWorker(f"stall:{me}", hub.db, hub.relay.callbacks, chat_texts(hub.settings.chat_language), after)
        )
    if handlers:
        theirs = WorkerConfig(
            concurrency=handlers.concurrency,
            shutdown_grace=hub.settings.stop_within,
            handler_timeout=handlers.handler_timeout,
        )
        rota = partial(handlers.schedule, hub.db)
        employed.append(Worker(f"handlers:{me}", HandlerLane(), hub.db, hub.doorbell, handlers.handle, rota, theirs))
    return employed


def build_rules_lane(templates: TemplateCatalogue) -> TransactionalLane:
    """The events that are owed to the hub: what its rules make of one is made as it is settled."""

    async def work(tx: Tx, events: Sequence[ClaimedEvent]) -> Sequence[Outcome]:
        return await apply_rules(tx, events, templates)

    return TransactionalLane(work)


async def hub_claim_filters() -> Sequence[ClaimFilter]:
    return ({"service": HUB_ACTOR.name},)


def register_hub_process(
    hub: Hub, hub_workers: Sequence[Worker[Any] | StallWorker], handlers: EventHandlers | None = None
) -> AbstractAsyncContextManager[None]:
    """The process and its workers on the roll, for as long as the block lasts."""
    claiming = [each for each in hub_workers if isinstance(each, Worker)]

    async def report(tx: Tx) -> dict[str, Any]:
        said: dict[str, Any] = {"version": __version__, "holds": sum(worker.in_flight for worker in claiming)}
        if handlers:
            await handlers.mark_seen(tx)
            said |= {"program": handlers.program, "handlers": handlers.event_types_by_service}
        return said

    return registered_process(hub.db, sorted({worker.lane.name for worker in claiming}), report)


def build_discord_sender(settings: Settings, db: Database, discord_client: HttpClient) -> MessageSender:
    """Where notices for Discord go: to its API, or into the log when there is no token."""
    if settings.discord_token is None or not (token := settings.discord_token.get_secret_value()):
        return DryRunSender()
    return DiscordSender(db, DiscordApi(discord_client, token, settings.discord_api_url))


def allowed_discord_origins(settings: Settings) -> AllowedOrigins:
    """Discord itself is reached like anybody; a stand-in may be anywhere, because the operator named it."""
    return (
        AllowedOrigins()
        if settings.discord_api_url == discord.DISCORD_API_URL
        else AllowedOrigins.of([settings.discord_api_url])
    )


def build_push_sender(http_client: HttpClient) -> SendPush:
    """How a push goes out: as a signed webhook."""

    async def send(post: PushRequest) -> Outcome | ReceiverGone:
        read = await post_webhook(
            http_client,
            post.url,
            post.secrets,
            message_id=post.message_id,
            sent_at=post.at,
            body=post.body,
            time_limit=post.timeout,
            traceparent=post.traceparent,
        )
        match read:
            case Dead(why):
                return ReceiverGone(why)
            case Done() | Retry():
                return read
            case _:
                assert_never(read)

    return send


def build_callback_sender(http_client: HttpClient) -> PostCallback:
    """How an answer goes out: to Kakao, once."""

    async def post(url: str, body: bytes) -> CallbackResult:
        became = await post_kakao_callback(http_client, url, body)
        match became:
            case KakaoAccepted(status, said):
                return CallbackResult(CallbackOutcome.SENT, None, status, said)
            case KakaoRefused(why, status, said):
                return CallbackResult(CallbackOutcome.REFUSED, why, status, said)
            case KakaoUnknown(why, status):
                return CallbackResult(CallbackOutcome.UNKNOWN, why, status)
            case KakaoNotSent(why):
                return CallbackResult(CallbackOutcome.UNSENT, why)
            case _:
                assert_never(became)

    return post


async def load_hub_keys(settings: Settings, db: Database) -> KeyRing:
    """The keys from the settings, or those in the data folder, which a first start makes."""
    if settings.keys:
        return keyring_from_setting(settings.keys.get_secret_value())
    kept = settings.data_dir / keyring.KEY_FILE_NAME
    if not key_file_exists(kept):
        async with db.autocommit() as tx:
            if await database_uses_keys(tx):
                raise SetupError(
                    f"this database was written with keys that are not here: bring them to {kept}, or set PABAL_KEYS"
                )
    return open_or_create_keyring(settings.data_dir)
