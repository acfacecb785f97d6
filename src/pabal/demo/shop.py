"""A shop at work, played: orders are placed, paid, posted and written about, and now and then something goes wrong.

What happens is told by the number of the order alone, so that every play is the same.
"""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import httpx2

from pabal.client import AsyncClient, ClientError
from pabal.core.log import get_logger
from pabal.demo.people import EVERYBODY, MINA
from pabal.demo.plugin import is_well

log = get_logger()

FIRST = 1001
BUSY = 20
"""Orders that come at once, so that there is something to see; then it is a quiet day."""
QUICKLY, QUIETLY = 0.3, 4.0
"""Seconds from one order to the next."""

GOODS = (
    ("제주 감귤 3kg", 18900),
    ("Ceramic mug", 24000),
    ("들기름 300ml", 21500),
    ("Linen apron", 39000),
    ("보성 녹차 50g", 15000),
)
WISHES = ("문 앞에 놓아 주세요", "Please ring twice", "경비실에 맡겨 주세요")


@dataclass(frozen=True, slots=True)
class Said:
    """An event somebody publishes; without a target it is for everybody who wants it."""

    source: str
    event_type: str
    payload: Mapping[str, Any]
    more: Mapping[str, Any] = field(default_factory=dict[str, Any])


class Town:
    """The services that publish: a shop, and a guard for its Discord server."""

    def __init__(self, hub: str, secrets: Mapping[str, str]) -> None:
        self._hub = hub
        self._secrets = secrets

    async def run(self) -> None:
        """Sell until cancelled."""
        async with AsyncExitStack() as stack:
            web = await stack.enter_async_context(httpx2.AsyncClient(base_url=self._hub, trust_env=False))
            while not await answers(web):  # noqa: ASYNC110 another program sets no event of ours
                await asyncio.sleep(QUICKLY)
            clients = {
                source: await stack.enter_async_context(AsyncClient(self._hub, source, secret))
                for source, secret in self._secrets.items()
            }
            for number in count(FIRST):
                for said in day(number):
                    await publish(clients[said.source], said)
                await asyncio.sleep(QUICKLY if number < FIRST + BUSY else QUIETLY)


async def publish(client: AsyncClient, said: Said) -> None:
    try:
        await client.publish(said.event_type, said.payload, **said.more)
    except ClientError as error:
        log.debug("event lost", event_type=said.event_type, why=str(error))


async def answers(web: httpx2.AsyncClient) -> bool:
    try:
        return await is_well(web)
    except httpx2.HTTPError:
        return False


def day(number: int) -> Iterator[Said]:
    """What happens around one order."""
    buyer, (item, amount) = EVERYBODY[number % len(EVERYBODY)], GOODS[number % len(GOODS)]
    card = {3: "expired", 8: "closed"}.get(number % 12, "good")
    user = {"name": buyer.name, "discord_id": buyer.discord_id, "email": buyer.email}
    order = {"order": number, "item": item, "amount": amount, "currency": "KRW", "user": user}
    about = {"correlation_id": f"order-{number}"}
    wish = WISHES[number % len(WISHES)]
    placed = order | {"card": card, "card_no": f"4111-****-{number}", "wish": wish}
    yield Said("shop", "order.placed", placed, about | {"target_service": "billing", "max_retries": 6})
    if card == "good":
        guest = {**order, "user": {"name": "손님"}}
        yield Said("shop", "order.paid", guest if number % 20 == 5 else order, about)  # noqa: PLR2004 a guest has no Discord
    if number % 4 == 1:
        yield Said("shop", "customer.seen", {"name": buyer.name, "wish": wish}, about)
    if number % 10 == 2:  # noqa: PLR2004 now and then, as below
        to = {"target_service": "mailer", "max_retries": 0}
        yield Said("shop", "mail.bounced", {"to": buyer.email, "order": number}, about | to)
    if number % 10 == 6:  # noqa: PLR2004
        to = {"target_service": "warehouse", "max_retries": 0}
        yield Said("shop", "stock.counted", {"item": item, "left": number % 7}, about | to)
    if number % 15 == 7:  # noqa: PLR2004
        yield from attack(number)


def attack(number: int) -> Iterator[Said]:
    """Somebody bans half the server, and the guard says so twice."""
    incident = f"raid-{number}"
    told = {"guild": "파발 가게", "actor": "mallory", "action": "ban", "owner": MINA.discord_id, "incident": incident}
    for banned in (12, 31):
        yield Said("guard", "server.attacked", told | {"count": banned}, {"correlation_id": incident, "priority": 1})
