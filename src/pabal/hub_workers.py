"""The workers of a process, and its row in the table of processes. Builds on the composition root."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from typing import Any

from pabal import __version__
from pabal.core.actor import HUB_ACTOR
from pabal.db.tx import Tx
from pabal.events.consume.fair_claims import FairClaims
from pabal.events.consume.handlers import EventHandlers
from pabal.events.consume.lane import LANE as EVENT_LANE
from pabal.events.consume.lane import ClaimedEvent, EventClaimFilter
from pabal.events.consume.transactional import TransactionalHandler
from pabal.events.push.handler_lane import HandlerLane
from pabal.events.push.push_lane import PushDelivery, PushLane
from pabal.events.push.pusher import Pusher
from pabal.events.push.targets import PushSlot
from pabal.hub import Hub
from pabal.notifications.dispatch.concurrency import DISPATCH_CONCURRENCY
from pabal.notifications.dispatch.dispatch_lane import NotificationDispatchLane
from pabal.notifications.requests import notification_rate_limit
from pabal.notifications.rules.apply_rules import apply_rules
from pabal.queue.outcome import Outcome
from pabal.queue.processes import ProcessDetails, process_name, registered_process
from pabal.queue.worker import Worker, WorkerConfig
from pabal.relay.reply.poller import CallbackPoller
from pabal.relay.reply.stall import StallWorker
from pabal.relay.reply.waiting import WaitingReplyWorker
from pabal.relay.webhook.skill_response import chat_texts


def build_workers(hub: Hub, handlers: EventHandlers | None = None) -> list[Worker[Any, Any, Any] | CallbackPoller]:
    """Build the workers of a process. The caller runs each one until it is stopped."""
    process, db = process_name(), hub.settle_db
    config = WorkerConfig(shutdown_grace=hub.settings.stop_within)
    texts = chat_texts(hub.settings.chat_language)
    workers: list[Worker[Any, Any, Any] | CallbackPoller] = [
        build_push_worker(hub, hub.pusher, f"push:{process}", config),
        build_rules_worker(hub, f"rules:{process}", config),
        Worker(
            f"dispatch:{process}",
            NotificationDispatchLane(),
            db,
            hub.doorbell,
            hub.dispatcher.handle,
            hub.dispatcher.schedule,
            replace(config, concurrency=DISPATCH_CONCURRENCY),
        ),
        WaitingReplyWorker(f"waiting:{process}", db, hub.relay.callbacks, texts),
    ]
    if delay := hub.settings.still_working_after:
        workers.append(StallWorker(f"stall:{process}", db, hub.relay.callbacks, texts, delay))
    if handlers:
        handler_config = WorkerConfig(
            concurrency=handlers.concurrency,
            shutdown_grace=hub.settings.stop_within,
            handler_timeout=handlers.handler_timeout,
        )
        workers.append(
            Worker(
                f"handlers:{process}",
                HandlerLane(handlers) if handlers.has_schedules else EVENT_LANE,
                db,
                hub.doorbell,
                handlers.handle,
                handlers.schedule,
                handler_config,
                on_wakeup=handlers.is_handled_service,
            )
        )
    return workers


def build_push_worker(
    hub: Hub, pusher: Pusher, name: str, config: WorkerConfig
) -> Worker[PushDelivery, PushSlot, Outcome]:
    """The worker that pushes events to their subscribers."""
    return Worker(
        name,
        PushLane(),
        hub.settle_db,
        hub.doorbell,
        pusher.handle,
        pusher.schedule,
        config,
        on_wakeup=pusher.due_services.on_wakeup,
        has_more=pusher.due_services.has_more,
    )


def build_rules_handler(hub: Hub) -> TransactionalHandler:
    """The handler of the events queued for the hub: apply the notification rules in the settling transaction."""
    rate_limit = notification_rate_limit(hub.settings.notifications_per_service)
    return TransactionalHandler(hub.settle_db, partial(apply_rules, catalogue=hub.templates, rate_limit=rate_limit))


def build_rules_worker(
    hub: Hub, name: str, config: WorkerConfig, handler: TransactionalHandler | None = None
) -> Worker[ClaimedEvent, EventClaimFilter]:
    """The worker of the events queued for the hub itself."""
    claims = FairClaims(hub.settle_db, HUB_ACTOR.name, config.concurrency, (handler or build_rules_handler(hub)).handle)
    return Worker(
        name,
        EVENT_LANE,
        hub.settle_db,
        hub.doorbell,
        claims.handle,
        claims.schedule,
        config,
        on_wakeup=claims.is_concerned,
    )


def register_hub_process(
    hub: Hub, hub_workers: Sequence[Worker[Any, Any, Any] | CallbackPoller], handlers: EventHandlers | None = None
) -> AbstractAsyncContextManager[None]:
    """Register this process and its lanes in the table of processes for the duration of the block."""
    workers = [worker for worker in hub_workers if isinstance(worker, Worker)]

    async def report(tx: Tx) -> ProcessDetails:
        if handlers:
            await handlers.mark_seen(tx)
        return ProcessDetails(
            version=__version__,
            holds=sum(worker.in_flight for worker in workers),
            doorbell=hub.doorbell.transport,
            lacks_nats=hub.doorbell.lacks_nats,
            unreadable_keys=hub.relay.cipher.unreadable_count or None,
            program=handlers.program if handlers else None,
            handlers=handlers.event_types_by_service if handlers else None,
        )

    return registered_process(hub.db, sorted({worker.lane.name for worker in workers}), report)
