"""A simulated shop: it publishes the events of its orders, and some of them fail.

The order number alone decides what happens, so every run is the same.
"""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import httpx2
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from pabal.core.log import get_logger
from pabal.demo.bot import is_hub_healthy
from pabal.demo.seed_data import DEMO_PEOPLE, MINA
from pabal_client import AsyncClient, ClientError

log = get_logger()

FIRST_ORDER = 1001
BURST_ORDERS = 20
"""Orders of the first seconds, so that there is something to see."""
BURST_INTERVAL, IDLE_INTERVAL = 0.3, 4.0
"""Seconds between two orders."""

GOODS = (
    ("제주 감귤 3kg", 18900),
    ("Ceramic mug", 24000),
    ("들기름 300ml", 21500),
    ("Linen apron", 39000),
    ("보성 녹차 50g", 15000),
)
DELIVERY_NOTES = ("문 앞에 놓아 주세요", "Please ring twice", "경비실에 맡겨 주세요")


@dataclass(frozen=True, slots=True)
class DemoEvent:
    """An event to publish."""

    source: str
    event_type: str
    payload: Mapping[str, Any]
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])


class DemoShop:
    """Publishes the events of two services: a shop, and a guard for its Discord server."""

    def __init__(self, hub: str, secrets: Mapping[str, str]) -> None:
        self._hub = hub
        self._secrets = secrets

    async def run(self) -> None:
        """Publish events until cancelled."""
        async with AsyncExitStack() as stack:
            web = await stack.enter_async_context(httpx2.AsyncClient(base_url=self._hub, trust_env=False))
            while not await is_hub_reachable(web):  # noqa: ASYNC110 the hub cannot set an event here
                await asyncio.sleep(BURST_INTERVAL)
            clients = {
                source: await stack.enter_async_context(AsyncClient(self._hub, source, secret))
                for source, secret in self._secrets.items()
            }
            for number in count(FIRST_ORDER):
                for event in order_events(number):
                    await publish_demo_event(clients[event.source], event)
                await asyncio.sleep(BURST_INTERVAL if number < FIRST_ORDER + BURST_ORDERS else IDLE_INTERVAL)


async def publish_demo_event(client: AsyncClient, event: DemoEvent) -> None:
    try:
        await client.publish(event.event_type, event.payload, **event.options)
    except ClientError as error:
        log.debug("event not published", event_type=event.event_type, error=str(error))


async def is_hub_reachable(web: httpx2.AsyncClient) -> bool:
    try:
        return await is_hub_healthy(web)
    except httpx2.HTTPError:
        return False


def order_events(number: int) -> Iterator[DemoEvent]:
    """The events of one order."""
    buyer, (item, amount) = DEMO_PEOPLE[number % len(DEMO_PEOPLE)], GOODS[number % len(GOODS)]
    card = {3: "expired", 8: "closed"}.get(number % 12, "good")
    user = {"name": buyer.name, "discord_id": buyer.discord_id, "email": buyer.email}
    order = {"order": number, "item": item, "amount": amount, "currency": "KRW", "user": user}
    options = {"correlation_id": f"order-{number}"}
    note = DELIVERY_NOTES[number % len(DELIVERY_NOTES)]
    placed = order | {"card": card, "card_no": f"4111-****-{number}", "wish": note}
    yield DemoEvent("shop", "order.placed", placed, options | {"target": "billing", "max_retries": 6})
    if card == "good":
        guest = {**order, "user": {"name": "손님"}}
        yield DemoEvent("shop", "order.paid", guest if number % 20 == 5 else order, options)  # noqa: PLR2004 a guest has no Discord
    if number % 4 == 1:
        yield DemoEvent("shop", "customer.seen", {"name": buyer.name, "wish": note}, options)
    if number % 10 == 2:  # noqa: PLR2004 now and then, as below
        target = {"target": "mailer", "max_retries": 0}
        yield DemoEvent("shop", "mail.bounced", {"to": buyer.email, "order": number}, options | target)
    if number % 10 == 6:  # noqa: PLR2004
        target = {"target": "warehouse", "max_retries": 0}
        yield DemoEvent("shop", "stock.counted", {"item": item, "left": number % 7}, options | target)
    if number % 15 == 7:  # noqa: PLR2004
        yield from raid_events(number)


def raid_events(number: int) -> Iterator[DemoEvent]:
    """An attacker bans members, and the guard reports it twice."""
    incident = f"raid-{number}"
    attack = {"guild": "파발 가게", "actor": "mallory", "action": "ban", "owner": MINA.discord_id, "incident": incident}
    for banned in (12, 31):
        yield DemoEvent(
            "guard", "server.attacked", attack | {"count": banned}, {"correlation_id": incident, "priority": 1}
        )


SLOW_RECEIVER_SECONDS = 0.8
"""Seconds. Shorter than the grace period of a stopping hub."""


class FakeReceivers:
    """The webhook receivers of three services."""

    def __init__(self) -> None:
        self._mails = count(1)
        self._customers = count(1)

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/warehouse", self.warehouse, methods=["POST"]),
            Route("/mailer", self.mailer, methods=["POST"]),
            Route("/crm", self.crm, methods=["POST"]),
        ]

    async def warehouse(self, request: Request) -> Response:
        """Accept everything except `stock.counted`."""
        event = await request.json()
        return (
            receiver_fails(500, "the scanner is on fire")
            if event["event_type"] == "stock.counted"
            else receiver_accepts()
        )

    async def mailer(self, request: Request) -> Response:
        """Reject bounced mails. Every fifth request fails, every third is slow."""
        event, number = await request.json(), next(self._mails)
        if event["event_type"] == "mail.bounced":
            return receiver_fails(422, "no such mailbox")
        if number % 5 == 0:
            return receiver_fails(503, "out of stamps")
        if number % 3 == 0:
            await asyncio.sleep(SLOW_RECEIVER_SECONDS)
        return receiver_accepts()

    async def crm(self, _request: Request) -> Response:
        """Accept two events, then respond with 410 Gone."""
        return (
            receiver_accepts()
            if next(self._customers) <= 2  # noqa: PLR2004
            else receiver_fails(410, "this CRM was replaced last spring")
        )


def receiver_accepts() -> Response:
    return Response(status_code=204)


def receiver_fails(status: int, error: str) -> Response:
    return PlainTextResponse(error, status)
