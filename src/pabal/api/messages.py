"""Messages for bots that fetch: claim some, then say what became of them."""

from datetime import timedelta
from typing import Annotated, Any
from uuid import UUID

import msgspec
from msgspec import Meta

from pabal import limits
from pabal.api.door import Answer, Body, Door, Query, Shape
from pabal.api.tenant import tenant
from pabal.api.visit import Visit
from pabal.core.errors import Invalid, PabalError, TooMany
from pabal.limits import Limit
from pabal.relay import poll
from pabal.relay.bearer import Owner
from pabal.relay.lane import LANE, HeldMessage, Waiting
from pabal.relay.stream import as_told, epoch_ms
from pabal.wiring import Hub

MOST_SECONDS, MOST_MS, LEAST_MS = 30, 30_000, 100
MINUTE = timedelta(minutes=1)

Ids = Annotated[list[str], Meta(min_length=1, max_length=100)]
Lease = Annotated[int, Meta(ge=5, le=900)]


class PollQuery(Query, frozen=True):
    """How many messages, how long to wait for the first, and how long to hold them.

    `wait` is 0, or 1 to 30 seconds, or 100 to 30000 milliseconds.
    """

    limit: Annotated[int, Meta(ge=1, le=100)] = 10
    wait: Annotated[int, Meta(ge=0, le=MOST_MS)] = 0
    lease: Lease = 60
    cursor: str | None = None

    @property
    def patience(self) -> timedelta:
        if self.wait <= MOST_SECONDS:
            return timedelta(seconds=self.wait)
        if self.wait < LEAST_MS:
            raise Invalid.one("wait", "is 0, or 1 to 30 seconds, or 100 to 30000 milliseconds")
        return timedelta(milliseconds=self.wait)


class Which(Body, frozen=True, rename="camel"):
    """Which messages."""

    message_ids: Ids


class Extension(Body, frozen=True, rename="camel"):
    """Which messages to hold longer, and for how many seconds from now."""

    message_ids: Ids
    lease: Lease = 60


class Fetched(Answer, frozen=True, rename="camel"):
    """A message in the bot's hands. `payload` is `kakaoPayload` by its older name; times with `timestamp` in ms."""

    id: str
    conversation_key: str
    timestamp: int
    kakao_payload: dict[str, Any]
    payload: dict[str, Any]
    normalized: dict[str, Any]
    callback_expires_at: int | None
    delivery_count: int
    created_at: str


class Page(Answer, frozen=True, rename="camel"):
    messages: list[Fetched]
    cursor: str | None
    has_more: bool


class Acknowledged(Answer, frozen=True):
    acknowledged: int
    requested: int


class Returned(Answer, frozen=True):
    returned: int
    requested: int


class Extended(Answer, frozen=True):
    extended: int
    requested: int


async def fetch(hub: Hub, visit: Visit, owner: Owner, query: PollQuery) -> Page:
    """Fetch messages that wait, the oldest first, or the first that comes if asked to wait.

    They come back when the lease ends.
    """
    who = Waiting(owner.account, f"poll:{owner.token}", timedelta(seconds=query.lease))
    patience = query.patience
    async with hub.autocommit() as tx:
        await limits.take(tx, requests_of(owner), str(owner.account))
    found = await visit.stays_for(hub.relay.desk.take(who, query.limit, patience))
    if found and patience:
        await see_again(hub, visit, found)
    hub.relay.figures.delivered.add(len(found))
    last = str(found[-1].id) if found else None
    return Page([fetched(message) for message in found], last, has_more=len(found) == query.limit)


async def see_again(hub: Hub, visit: Visit, found: list[HeldMessage]) -> None:
    """A token that died while its bearer waited brings nothing any more."""
    try:
        await tenant(visit.request, hub)
    except PabalError:
        async with hub.transaction() as tx:
            await LANE.release(tx, found)
        raise


async def ack(hub: Hub, owner: Owner, body: Which) -> Acknowledged:
    """Say that messages are done with; a reply may still follow."""
    async with hub.autocommit() as tx:
        done = await poll.ack(tx, owner.account, known(body.message_ids))
    hub.relay.switchboard.settled(owner.account, done)
    return Acknowledged(len(done), len(body.message_ids))


async def nack(hub: Hub, owner: Owner, body: Which) -> Returned:
    """Give messages back at once."""
    async with hub.autocommit() as tx:
        back = await poll.nack(tx, owner.account, known(body.message_ids))
    hub.relay.switchboard.settled(owner.account, back)
    return Returned(len(back), len(body.message_ids))


async def extend(hub: Hub, owner: Owner, body: Extension) -> Extended:
    """Hold messages longer."""
    async with hub.autocommit() as tx:
        held = await poll.extend(tx, owner.account, known(body.message_ids), timedelta(seconds=body.lease))
    return Extended(len(held), len(body.message_ids))


def requests_of(owner: Owner) -> Limit:
    return Limit("relay requests", owner.rate_limit, MINUTE)


def known(texts: list[str]) -> list[UUID]:
    """Those that can be ids at all; the others are nobody's messages."""
    ids: dict[UUID, None] = {}
    for text in texts:
        try:
            ids[msgspec.convert(text, UUID)] = None
        except msgspec.ValidationError:
            continue
    return [*ids]


def fetched(message: HeldMessage) -> Fetched:
    told = as_told(message)
    return Fetched(
        id=told["id"],
        conversation_key=told["conversationKey"],
        timestamp=epoch_ms(message.created_at),
        kakao_payload=told["kakaoPayload"],
        payload=told["kakaoPayload"],
        normalized=told["normalized"],
        callback_expires_at=told["callbackExpiresAt"],
        delivery_count=told["deliveryCount"],
        created_at=told["createdAt"],
    )


DOORS = tuple(
    Door(
        method,
        f"{family}/messages{more}",
        handler,
        bearer=True,
        claims=handler is fetch,
        may_raise=may_raise,
        shape=Shape.RELAY,
        tag="relay",
    )
    for family in ("/openclaw", "/v1")
    for method, more, handler, may_raise in (
        ("GET", "", fetch, (TooMany,)),
        ("POST", "/ack", ack, ()),
        ("POST", "/nack", nack, ()),
        ("POST", "/extend", extend, ()),
    )
)
