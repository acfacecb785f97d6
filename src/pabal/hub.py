"""The composition root: builds a hub from its settings. No other module wires packages together."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from pabal import __version__
from pabal.audit.chain_head import ChainHeadFile
from pabal.audit.sealer import AuditSealer
from pabal.core.forwarding import UntrustedProxyLog
from pabal.core.metrics import Metrics
from pabal.db.doorbell.channels import Channel
from pabal.db.doorbell.doorbell import Doorbell
from pabal.db.pool import ConnectOptions, Database, ReservedDatabase
from pabal.db.tx import Tx
from pabal.db.urls import DatabaseUrls
from pabal.events.consume.lane import LANE as EVENT_LANE
from pabal.events.consume.lane import ClaimedEvent
from pabal.events.consume.pull import EventPollRequest, claim_events_for_polls
from pabal.events.publish.publish import EventDraft, PublishResult, publish_events
from pabal.events.push.pusher import Pusher
from pabal.keys.keyring import KeyRing
from pabal.keys.load import load_keyring
from pabal.maintenance import build_alert_chores, build_chores
from pabal.notifications.dispatch.discord import DiscordSender, DryRunSender, MessageSender
from pabal.notifications.dispatch.dispatcher import NotificationDispatcher
from pabal.notifications.dispatch.missing_transport import MissingTransportSender
from pabal.notifications.operator_alerts import AlertTarget
from pabal.notifications.people.links import LINK_PAGE_PATH, LinkRequester
from pabal.notifications.templates.catalogue import TemplateCatalogue, load_templates
from pabal.notifications.toasts.streams import ToastStreams
from pabal.outside import discord, kakao
from pabal.outside.discord import DiscordApi
from pabal.outside.http import HttpClient
from pabal.outside.kakao import post_kakao_callback
from pabal.outside.ssrf import AllowedOrigins
from pabal.outside.webhook import post_webhook
from pabal.queue.batcher import Batcher
from pabal.queue.chores import ChoreRunner
from pabal.queue.long_poll import LongPoll
from pabal.queue.throughput import ThroughputCounter
from pabal.relay.delivery.decrypted_claims import MessageClaimer
from pabal.relay.delivery.lane import LANE as MESSAGE_LANE
from pabal.relay.delivery.lane import ClaimedMessage, MessagePollRequest
from pabal.relay.delivery.remote_waiters import RemoteWaiters
from pabal.relay.delivery.stream_registry import StreamRegistry
from pabal.relay.encryption.data_keys import DataKeyCache
from pabal.relay.encryption.message_cipher import MessageCipher
from pabal.relay.metrics import RelayMetrics
from pabal.relay.reply.answer_signals import AnswerSignals
from pabal.relay.reply.answer_speeds import AnswerSpeeds
from pabal.relay.reply.callback import CallbackSender
from pabal.relay.reply.send import ReplySender
from pabal.relay.webhook.handle import CONTENTION_TIMEOUT, WebhookHandler
from pabal.relay.webhook.held import HeldWebhooks
from pabal.relay.webhook.recall import CallbackRecaller
from pabal.relay.webhook.receive import InboundDraft, ReceiveResult, WebhookReceiver
from pabal.relay.webhook.skill_response import chat_texts
from pabal.settings import Settings
from pabal.stats import StatsReader
from pabal.tokens.issuer import TokenIssuer
from pabal.tokens.verify import TokenVerifier


@dataclass(frozen=True, slots=True)
class RelayServices:
    """The relay's components in one process."""

    webhooks: WebhookHandler
    webhook_batcher: Batcher[InboundDraft, ReceiveResult]
    long_poll: LongPoll[MessagePollRequest, ClaimedMessage]
    stream_registry: StreamRegistry
    callbacks: CallbackSender
    replies: ReplySender
    held_webhooks: HeldWebhooks
    answer_signals: AnswerSignals
    metrics: RelayMetrics
    recalls: CallbackRecaller
    remote_waiters: RemoteWaiters
    cipher: MessageCipher


@dataclass(frozen=True, slots=True)
class Hub:
    """A running hub, as endpoints, commands and workers receive it.

    `publish_db` and `settle_db` are `db` with the deadline of statements that publish, and that claim and settle.
    """

    settings: Settings
    database_urls: DatabaseUrls
    db: Database
    publish_db: Database
    settle_db: Database
    doorbell: Doorbell
    stats: StatsReader
    chores: ChoreRunner
    metrics: Metrics
    key_ring: KeyRing
    audit_sealer: AuditSealer
    token_issuer: TokenIssuer
    token_verifier: TokenVerifier
    publisher: Batcher[EventDraft, PublishResult]
    event_long_poll: LongPoll[EventPollRequest, ClaimedEvent]
    http_client: HttpClient
    pusher: Pusher
    relay: RelayServices
    toast_streams: ToastStreams
    templates: TemplateCatalogue
    dispatcher: NotificationDispatcher
    link_requester: LinkRequester
    untrusted_proxies: UntrustedProxyLog
    stopping: asyncio.Event
    """Set when the process is told to stop: it is not ready any more, but still answers."""
    closing: asyncio.Event
    """Set when shutdown begins; open streams then end."""

    def transaction(self) -> AbstractAsyncContextManager[Tx]:
        return self.db.transaction()

    def autocommit(self) -> AbstractAsyncContextManager[Tx]:
        return self.db.autocommit()

    async def begin_shutdown(self) -> None:
        """Close streams and answer waiting long polls with an empty result."""
        self.closing.set()
        self.relay.stream_registry.close_all()
        self.relay.held_webhooks.release_all()
        self.toast_streams.close_all()
        await self.event_long_poll.close()
        await self.relay.long_poll.close()


WEBHOOK_SHARE = 4
"""One in this many database connections is reserved for webhooks; none in a pool that is smaller."""


WEBHOOK_DEADLINE = timedelta(seconds=3)  # Kakao waits five
PUBLISH_DEADLINE = timedelta(seconds=5)
SETTLE_DEADLINE = timedelta(seconds=8)  # below the shortest lease, so that a settled row is settled in time
"""How long one statement of each kind may take. Others, such as chores, have PABAL_STATEMENT_TIMEOUT."""


def connect_options(settings: Settings, url: str, *, pooler: bool | None = None) -> ConnectOptions:
    return ConnectOptions(
        url,
        pool_size=settings.database_pool_size,
        reserved=settings.database_pool_size // WEBHOOK_SHARE,
        connect_timeout=settings.connect_timeout,
        statement_timeout=settings.statement_timeout,
        pooler=pooler,
        prepared=settings.database_prepared,
    )


@asynccontextmanager
async def open_hub(settings: Settings, database_urls: DatabaseUrls) -> AsyncGenerator[Hub]:
    """Open the database and every component; close them in reverse order."""
    async with AsyncExitStack() as stack:
        db = Database(connect_options(settings, database_urls.main, pooler=settings.database_pooler))
        stack.push_async_callback(db.close)
        await db.open()
        publish_db, settle_db = db.with_deadline(PUBLISH_DEADLINE), db.with_deadline(SETTLE_DEADLINE)
        key_ring = await load_keyring(settings, db)
        direct = database_urls.direct or (None if db.server_info.pooler else database_urls.main)
        direct_options = connect_options(settings, direct, pooler=False) if direct else None
        doorbell = Doorbell(db, direct_options, nats=settings.nats_servers)
        db.on_commit = doorbell.broadcast
        throughput = ThroughputCounter(db)
        stack.push_async_callback(throughput.close)  # after everything that counts outcomes
        await throughput.open()
        db.on_outcome_counts = throughput.add_counts
        metrics = Metrics(__version__)
        stack.callback(metrics.close)
        stats = StatsReader(db)
        stats.register_gauges(metrics.meter)
        token_issuer = TokenIssuer(key_ring, settings.issuer, settings.token_audience)
        token_listener = stack.enter_context(doorbell.listen(Channel.TOKENS))
        origins = AllowedOrigins.of(settings.callback_allow)
        http_client = await stack.enter_async_context(HttpClient(origins))
        # Callbacks have a client of their own: a slow push receiver must not delay them.
        kakao_client = await stack.enter_async_context(HttpClient(origins, idle_timeout=kakao.CALLBACK_IDLE_TIMEOUT))
        discord_client = await stack.enter_async_context(HttpClient(allowed_discord_origins(settings)))
        relay = build_relay(settings, db, doorbell, metrics, kakao_client, key_ring)
        templates = load_templates(settings.templates)
        alert_target = AlertTarget(templates, settings.operator_channel if settings.has_discord_transport else None)
        discord_sender = build_discord_sender(settings, db, discord_client)
        audit_sealer = AuditSealer(key_ring, ChainHeadFile(settings.data_dir))
        hub = Hub(
            settings=settings,
            database_urls=database_urls,
            db=db,
            publish_db=publish_db,
            settle_db=settle_db,
            doorbell=doorbell,
            stats=stats,
            chores=ChoreRunner(
                db,
                (*build_chores(settings, relay.metrics), *build_alert_chores(settings, alert_target, audit_sealer)),
            ),
            metrics=metrics,
            key_ring=key_ring,
            audit_sealer=audit_sealer,
            token_issuer=token_issuer,
            token_verifier=TokenVerifier(db, token_issuer, token_listener),
            publisher=Batcher(publish_db, partial(publish_events, doorbell=doorbell)),
            event_long_poll=LongPoll(
                db,
                doorbell,
                Channel.EVENTS,
                claim_events_for_polls,
                EVENT_LANE.release,
                topic=lambda request: request.service,
            ),
            http_client=http_client,
            pusher=Pusher(settle_db, key_ring, partial(post_webhook, http_client)),
            relay=relay,
            toast_streams=ToastStreams(db, doorbell),
            templates=templates,
            dispatcher=NotificationDispatcher(settle_db, templates, discord_sender, settings.chat_language),
            link_requester=LinkRequester(db, discord_sender, f"{settings.issuer}{LINK_PAGE_PATH}"),
            untrusted_proxies=UntrustedProxyLog(),
            stopping=asyncio.Event(),
            closing=asyncio.Event(),
        )
        stack.enter_context(relay.remote_waiters.listener)
        stack.push_async_callback(doorbell.close)
        await doorbell.open()
        stack.push_async_callback(hub.publisher.close)
        stack.push_async_callback(hub.event_long_poll.close)
        stack.push_async_callback(close_relay, hub.relay, settings.stop_within)
        stack.push_async_callback(hub.toast_streams.stop)
        stack.callback(hub.closing.set)
        yield hub


def build_relay(
    settings: Settings,
    db: Database,
    doorbell: Doorbell,
    metrics: Metrics,
    kakao_client: HttpClient,
    key_ring: KeyRing,
) -> RelayServices:
    remote_waiters = RemoteWaiters(doorbell)
    cipher = MessageCipher(DataKeyCache(key_ring), is_on=settings.relay_encrypt_text)
    db.on_connect = cipher.forget
    long_poll = LongPoll(
        db,
        doorbell,
        Channel.MESSAGES,
        MessageClaimer(cipher).claim,
        MESSAGE_LANE.release,
        topic=lambda request: request.topic,
        announce=remote_waiters.announce,
    )
    stream_registry = StreamRegistry(db, doorbell, long_poll, remote_waiters.process_id, cipher)
    receiver = WebhookReceiver(
        stream_registry.handover,
        remote_waiters,
        settings.queue_life,
        settings.webhook_per_conversation,
        settings.webhook_per_channel,
        cipher,
    )
    relay_metrics = RelayMetrics(metrics.meter)
    settle_db = db.with_deadline(SETTLE_DEADLINE)
    callbacks = CallbackSender(settle_db, partial(post_kakao_callback, kakao_client), relay_metrics, cipher)
    webhook_db = ReservedDatabase(db, WEBHOOK_DEADLINE)  # Kakao waits five seconds, whatever other callers do
    webhook_batcher = Batcher(webhook_db, receiver.receive, contention_timeout=CONTENTION_TIMEOUT)
    recalls = CallbackRecaller(webhook_db)
    signals, speeds = AnswerSignals(doorbell), AnswerSpeeds()
    texts = chat_texts(settings.chat_language)
    held_webhooks = HeldWebhooks(webhook_db, callbacks, signals, speeds, stream_registry.handover.find_account, texts)
    return RelayServices(
        webhooks=WebhookHandler(webhook_db, webhook_batcher, recalls, relay_metrics, settings, held_webhooks, cipher),
        webhook_batcher=webhook_batcher,
        long_poll=long_poll,
        stream_registry=stream_registry,
        callbacks=callbacks,
        replies=ReplySender(settle_db, callbacks, stream_registry.remove_in_flight, signals, speeds, texts, cipher),
        held_webhooks=held_webhooks,
        answer_signals=signals,
        metrics=relay_metrics,
        recalls=recalls,
        remote_waiters=remote_waiters,
        cipher=cipher,
    )


async def close_relay(relay: RelayServices, time_limit: timedelta) -> None:
    await relay.webhook_batcher.close()
    await relay.recalls.drain(time_limit)
    await relay.held_webhooks.close()
    await relay.replies.close()
    relay.answer_signals.close()
    await relay.callbacks.close()
    await relay.stream_registry.drain()
    await relay.long_poll.close()


def build_discord_sender(settings: Settings, db: Database, discord_client: HttpClient) -> MessageSender:
    """The sender for Discord: its API, the log of a dry run, or one that sends nothing if no token is set."""
    if settings.discord_dry_run:
        return DryRunSender()
    if settings.discord_token is None or not (token := settings.discord_token.get_secret_value()):
        return MissingTransportSender()
    return DiscordSender(db, DiscordApi(discord_client, token, settings.discord_api_url))


def allowed_discord_origins(settings: Settings) -> AllowedOrigins:
    """Discord is a public host. A replacement may be on a private network, because the operator configured it."""
    return (
        AllowedOrigins()
        if settings.discord_api_url == discord.DISCORD_API_URL
        else AllowedOrigins.of([settings.discord_api_url])
    )
