"""A service with slow receivers or a huge backlog does not delay other services."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from uuid import UUID

import pytest

from pabal.hub import Hub
from pabal.settings import Settings
from support.receiver import Receiver, receiver, slow
from support.subscriptions import ends, event, pushing, say, subscribe
from support.wait import until

pytestmark = pytest.mark.anyio

SLOW_RECEIVERS = 40
EVENTS_EACH = 5


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"callback_allow": ["http://127.0.0.1"]})


@pytest.fixture
async def endpoint() -> AsyncGenerator[Receiver]:
    async with receiver() as server:
        yield server


async def test_forty_slow_receivers_of_one_service_leave_half_of_the_slots(hub: Hub, endpoint: Receiver) -> None:
    """The slow receivers never respond while the other service's events are sent, so no event waits for them."""
    release = asyncio.Event()
    async with AsyncExitStack() as stack:
        silent = await stack.enter_async_context(receiver())
        silent.mood = slow(release)
        for number in range(SLOW_RECEIVERS):
            await subscribe(hub, "minu_frame", f"slow_{number}.*", url=f"{silent.url}/{number}", within=60)
        await subscribe(hub, "minu_build", "quick.*", url=endpoint.url)
        waiting: list[UUID] = [
            await say(hub, f"slow_{number}.went", "minu_frame")
            for _ in range(EVENTS_EACH)
            for number in range(SLOW_RECEIVERS)
        ]
        await stack.enter_async_context(pushing(hub))
        await until(lambda: len(silent.requests) >= SLOW_RECEIVERS)

        for row in [await say(hub, "quick.went") for _ in range(30)]:
            await ends(hub, row, "completed")
        assert len(silent.requests) <= 50
        assert not [row for row in waiting if (await event(hub, row)).status == "completed"]

        release.set()
        for row in waiting:
            await ends(hub, row, "completed")
