"""The paths with a promise. Each acts in a hub that may be stopped; then another hub goes on, and it is judged."""

# ruff: noqa: ARG002 a path needs only some of the arguments

import asyncio
import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from time import monotonic
from typing import Any, ClassVar
from uuid import UUID

from pabal.api.kakao_webhook import parse_webhook
from pabal.core.errors import CallbackFailed, CallbackUnconfirmed, PabalError
from pabal.events.consume.lane import LANE as EVENTS
from pabal.events.consume.lane import EventClaimFilter
from pabal.events.publish.publish import EventDraft
from pabal.events.push.push_lane import PushLane
from pabal.hub import Hub
from pabal.notifications.decision.decide import NotificationChannel
from pabal.notifications.dispatch.dispatch_lane import NotificationDispatchLane
from pabal.queue.lane import Settlement
from pabal.queue.outcome import DONE
from pabal.relay.delivery.lane import LANE as MESSAGES
from pabal.relay.delivery.lane import MessagePollRequest
from pabal.relay.reply.callback import rescue_lost_callbacks
from pabal.relay.reply.reply import BotReply, encode_skill_response
from pabal.relay.reply.send import DeliveredReply
from pabal.relay.reply.stall import StallWorker
from pabal.relay.webhook.skill_response import chat_texts
from pabal.tokens.issue import authenticate_client, issue_tokens
from pabal.tokens.issuer import TokenPair
from pabal.tokens.refresh import refresh_tokens
from pabal.tokens.services import add_service
from relay.skills import USE_CALLBACK, skill_payload
from support.clusters import Connection
from support.fake_kakao import FakeKakao
from support.notifications import draft_notification, register_builtin_templates, request_drafts
from support.oauth_client import TESTER
from support.receiver import Receiver
from support.relay_rows import Chat, Owner, digest, skill_response
from support.subscriptions import publish_test_event, subscribe

LEASE = timedelta(seconds=30)
HOUR = timedelta(hours=1)
Subject = dict[str, str]
"""What one run of a path is about. It is JSON, so that another process can act on it."""


@dataclass(slots=True)
class Stage:
    """The hub that goes on, and what surrounds it."""

    hub: Hub
    db: Connection
    kakao: FakeKakao
    receiver: Receiver
    owner: Owner
    travel: Callable[[timedelta], Awaitable[None]]
    seen: list[Any] = field(default_factory=list[Any])
    """What the surviving hub was handed after the leases ended."""

    @property
    def chat(self) -> Chat:
        return Chat(self.db)


class PromisedPath(ABC):
    """One path. `act` returns its acknowledgement, in JSON; None or an error is no acknowledgement."""

    name: ClassVar[str]

    async def set_up(self, stage: Stage) -> None:  # noqa: B027 optional
        """Insert what all runs share."""

    @abstractmethod
    async def prepare(self, stage: Stage, number: int) -> Subject: ...

    @abstractmethod
    async def act(self, hub: Hub, subject: Subject) -> Any: ...

    async def retry(self, stage: Stage, subject: Subject) -> Any:  # noqa: B027 optional
        """What a client without an acknowledgement does at once, on another hub."""

    @abstractmethod
    async def recover(self, stage: Stage, subjects: Sequence[Subject]) -> None:
        """What the other hub does after the leases ended."""

    @abstractmethod
    async def judge(self, stage: Stage, subject: Subject, acknowledged: Any) -> str | None:
        """The broken promise, or None."""


class Receive(PromisedPath):
    """An acknowledged webhook is one message that its bot reads."""

    name = "receive"

    async def prepare(self, stage: Stage, number: int) -> Subject:
        user = f"receive-{number}"
        await stage.chat.conversation(stage.owner, user)
        return {"text": user, "body": json.dumps(skill_payload(user, user, callbackUrl=stage.kakao.url(user)))}

    async def act(self, hub: Hub, subject: Subject) -> Any:
        response = await hub.relay.webhooks.handle(
            parse_webhook(subject["body"].encode()), monotonic(), lambda waiting: waiting
        )
        return response == USE_CALLBACK or None

    async def retry(self, stage: Stage, subject: Subject) -> Any:
        return await self.act(stage.hub, subject)

    async def recover(self, stage: Stage, subjects: Sequence[Subject]) -> None:
        while rows := await claim_messages(stage.hub, stage.owner.id):
            stage.seen += [row.normalized["text"] for row in rows]

    async def judge(self, stage: Stage, subject: Subject, acknowledged: Any) -> str | None:
        stored = await stage.db.fetchval(
            "select count(*) from inbound_messages where normalized ->> 'text' = $1", subject["text"]
        )
        if stored > 1 or (acknowledged and not stored):
            return f"stored {stored} times"
        return None if stage.seen.count(subject["text"]) == stored else "stored and not delivered"


class Claim(PromisedPath):
    """A message that was claimed and not handed over comes back when the lease ends."""

    name = "claim"

    async def prepare(self, stage: Stage, number: int) -> Subject:
        owner = await stage.chat.owner()
        key = await stage.chat.conversation(owner, f"claim-{number}")
        return {"account": str(owner.id), "message": str(await stage.chat.message(owner, key, None))}

    async def act(self, hub: Hub, subject: Subject) -> Any:
        request = MessagePollRequest(UUID(subject["account"]), "poll:victim", LEASE)
        return [str(row.id) for row in await hub.relay.long_poll.poll(request, 10, timedelta())] or None

    async def recover(self, stage: Stage, subjects: Sequence[Subject]) -> None:
        for subject in subjects:
            stage.seen += [str(row.id) for row in await claim_messages(stage.hub, UUID(subject["account"]))]

    async def judge(self, stage: Stage, subject: Subject, acknowledged: Any) -> str | None:
        if acknowledged:
            return None if acknowledged == [subject["message"]] else "another message"
        return None if stage.seen.count(subject["message"]) == 1 else "the message did not come back"


class CallbackPath(PromisedPath):
    """At most one POST for each callback, and an outcome for each claim."""

    async def prepare(self, stage: Stage, number: int) -> Subject:
        name = f"{self.name}-{number}"
        key = await stage.chat.conversation(stage.owner, name)
        message = await stage.chat.message(stage.owner, key, stage.kakao.url(name), HOUR)
        return {"name": name, "message": str(message), "token": stage.owner.token}

    async def recover(self, stage: Stage, subjects: Sequence[Subject]) -> None:
        async with stage.hub.transaction() as tx:
            await rescue_lost_callbacks(tx, 100)
        for subject in subjects:
            try:
                stage.seen.append((subject["name"], await self.act(stage.hub, subject)))
            except (CallbackFailed, CallbackUnconfirmed):
                stage.seen.append((subject["name"], "unknown"))

    async def judge(self, stage: Stage, subject: Subject, acknowledged: Any) -> str | None:
        posts = len(stage.kakao.responses(subject["name"]))
        row = await stage.chat.reply(UUID(subject["message"]))
        outcome = row["outcome"] if row else None
        if posts > 1 or (acknowledged and posts != 1):
            return f"{posts} posts"
        if outcome not in {"sent", "unknown"}:
            return f"the outcome is {outcome}"
        return f"{outcome} with {posts} posts" if (outcome == "sent" and posts != 1) else None


class Reply(CallbackPath):
    """A bot's reply."""

    name = "reply"

    async def act(self, hub: Hub, subject: Subject) -> Any:
        response = skill_response("an answer")
        reply = BotReply(
            digest(subject["token"]), UUID(subject["message"]), None, response, encode_skill_response(response)
        )
        return isinstance(await hub.relay.replies.send(reply), DeliveredReply) or None


class Callback(CallbackPath):
    """The hub's own answer through a callback that is about to expire."""

    name = "callback"

    async def act(self, hub: Hub, subject: Subject) -> Any:
        texts = chat_texts(hub.settings.chat_language)
        worker = StallWorker("stall", hub.db, hub.relay.callbacks, texts, -HOUR)
        for _ in range(3):
            for due in await worker._poll():
                await worker._send(due)


class Settle(PromisedPath):
    """An event is completed once, and comes back until it is."""

    name = "settle"

    async def prepare(self, stage: Stage, number: int) -> Subject:
        return {"event": str(await publish_test_event(stage.hub, "fault.settled", "minu_build"))}

    async def act(self, hub: Hub, subject: Subject) -> Any:
        async with hub.autocommit() as tx:
            events = await EVENTS.claim(tx, 50, LEASE, "victim", EventClaimFilter("minu_build"))
        async with hub.transaction() as tx:
            settled = await EVENTS.settle(tx, [Settlement(event, DONE) for event in events])
        return [str(event) for event in settled] or None

    async def recover(self, stage: Stage, subjects: Sequence[Subject]) -> None:
        async with stage.hub.transaction() as tx:
            await EVENTS.revive(tx, 100)
        stage.seen += await self.act(stage.hub, {}) or []

    async def judge(self, stage: Stage, subject: Subject, acknowledged: Any) -> str | None:
        status = await stage.db.fetchval("select status from event_queue where id = $1::uuid", subject["event"])
        if status != "completed":
            return f"the event is {status}"
        return "settled again" if {*(acknowledged or ())} & {*stage.seen} else None


class Publish(PromisedPath):
    """An idempotency key is one event."""

    name = "publish"

    async def prepare(self, stage: Stage, number: int) -> Subject:
        return {"key": f"publish-{number}"}

    async def act(self, hub: Hub, subject: Subject) -> Any:
        draft = EventDraft("minu_find", "fault.published", target="minu_build", idempotency_key=subject["key"])
        return str((await hub.publisher.put(draft)).id)

    async def retry(self, stage: Stage, subject: Subject) -> Any:
        return await self.act(stage.hub, subject)

    async def recover(self, stage: Stage, subjects: Sequence[Subject]) -> None:
        pass

    async def judge(self, stage: Stage, subject: Subject, acknowledged: Any) -> str | None:
        rows = await stage.db.fetch("select id from event_queue where idempotency_key = $1", subject["key"])
        return None if [str(row["id"]) for row in rows] == [acknowledged] else f"stored {len(rows)} times"


class Rotate(PromisedPath):
    """A lost answer of a rotation is repeated; no family is revoked for it."""

    name = "rotate"

    async def prepare(self, stage: Stage, number: int) -> Subject:
        service = f"rotate_{number}"
        async with stage.hub.transaction() as tx:
            _, secret = await add_service(tx, service, ["write"], TESTER)
        async with stage.hub.autocommit() as tx:
            client = await authenticate_client(tx, service, secret, TESTER)
            pair = await issue_tokens(tx, stage.hub.token_issuer, client, client.allowed, TESTER)
        assert pair.refresh_token
        return {"service": service, "token": pair.refresh_token}

    async def act(self, hub: Hub, subject: Subject) -> Any:
        async with hub.transaction() as tx:
            pair = await refresh_tokens(
                tx, hub.token_issuer, subject["service"], subject["token"], requested=(), actor=TESTER
            )
        return pair.refresh_token if isinstance(pair, TokenPair) else None

    async def retry(self, stage: Stage, subject: Subject) -> Any:
        return await self.act(stage.hub, subject)

    async def recover(self, stage: Stage, subjects: Sequence[Subject]) -> None:
        pass

    async def judge(self, stage: Stage, subject: Subject, acknowledged: Any) -> str | None:
        if acknowledged is None:
            return "not rotated"
        further = await self.act(stage.hub, subject | {"token": acknowledged})
        return None if further else "the new token is not valid"


class Dispatch(PromisedPath):
    """A requested toast appears once."""

    name = "dispatch"

    async def set_up(self, stage: Stage) -> None:
        await register_builtin_templates(stage.hub)

    async def prepare(self, stage: Stage, number: int) -> Subject:
        draft = draft_notification(stage.hub, channel=NotificationChannel.DASHBOARD_TOAST, recipient=str(1000 + number))
        [request] = await request_drafts(stage.hub, draft)
        return {"request": str(request.id)}

    async def act(self, hub: Hub, subject: Subject) -> Any:
        lane, settled = NotificationDispatchLane(), set[UUID]()
        for claim in await hub.dispatcher.schedule():
            async with hub.autocommit() as tx:
                rows = await lane.claim(tx, claim.max_rows or 50, LEASE, "victim", claim.claim_filter)
            settlements = [Settlement(row, await hub.dispatcher.handle(row)) for row in rows]
            if settlements:
                async with hub.transaction() as tx:
                    settled |= await lane.settle(tx, settlements)
        return [*map(str, settled)] or None

    async def recover(self, stage: Stage, subjects: Sequence[Subject]) -> None:
        while settled := await self.act(stage.hub, {}):
            stage.seen += settled

    async def judge(self, stage: Stage, subject: Subject, acknowledged: Any) -> str | None:
        toasts = await stage.db.fetchval(
            "select count(*) from notification.toasts where id = $1::uuid", subject["request"]
        )
        status = await stage.db.fetchval(
            "select state from notification.requests where id = $1::uuid", subject["request"]
        )
        return None if (toasts, status) == (1, "sent") else f"{toasts} toasts, {status}"


class Push(PromisedPath):
    """An event reaches its receiver, also if the pusher was stopped after the POST; repeats have the same id."""

    name = "push"

    async def set_up(self, stage: Stage) -> None:
        await subscribe(stage.hub, "minu_keep", "fault.pushed", url=stage.receiver.url)

    async def prepare(self, stage: Stage, number: int) -> Subject:
        return {"event": str(await publish_test_event(stage.hub, "fault.pushed", "minu_keep"))}

    async def act(self, hub: Hub, subject: Subject) -> Any:
        lane, settled = PushLane(), set[UUID]()
        hub.pusher.due_services.on_wakeup("minu_keep")
        for claim in await hub.pusher.schedule():
            async with hub.autocommit() as tx:
                rows = await lane.claim(tx, claim.max_rows or 50, LEASE, "victim", claim.claim_filter)
            settlements = [Settlement(row, await hub.pusher.handle(row)) for row in rows]
            if settlements:
                async with hub.transaction() as tx:
                    settled |= await lane.settle(tx, settlements)
        return [*map(str, settled)] or None

    async def recover(self, stage: Stage, subjects: Sequence[Subject]) -> None:
        async with stage.hub.transaction() as tx:
            await EVENTS.revive(tx, 100)
        while settled := await self.act(stage.hub, {}):
            stage.seen += settled

    async def judge(self, stage: Stage, subject: Subject, acknowledged: Any) -> str | None:
        status = await stage.db.fetchval("select status from event_queue where id = $1::uuid", subject["event"])
        posts = Counter(json.loads(request.body)["id"] for request in stage.receiver.requests)
        if status != "completed" or not posts[subject["event"]]:
            return f"{status} after {posts[subject['event']]} posts"
        return "pushed again after it was settled" if {*(acknowledged or ())} & {*stage.seen} else None


async def claim_messages(hub: Hub, account: UUID) -> Sequence[Any]:
    async with hub.autocommit() as tx:
        return await MESSAGES.claim(tx, 50, LEASE, "poll:survivor", account)


PATHS: tuple[PromisedPath, ...] = (
    Receive(),
    Claim(),
    Reply(),
    Callback(),
    Settle(),
    Publish(),
    Rotate(),
    Dispatch(),
    Push(),
)


async def run_acknowledged(acting: "asyncio.Task[Any]") -> Any:
    """The acknowledgement of a path that ended; None if it failed or was stopped."""
    if not acting.done():
        return None
    try:
        return await acting
    except PabalError:
        return None
