"""Short faults of the network under a workload of all lanes: nothing acknowledged is lost, nothing is posted twice."""

import random
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from faults.workload import Verdict, Workload, open_workload
from pabal.core.errors import Unavailable
from pabal.hub import DatabaseUrls
from pabal.settings import Settings
from support.fault_proxy import FaultProxy
from support.wait import wait_until

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

RESETS = 3
Travel = Callable[[timedelta], Awaitable[None]]


def proxy_of(workload: Workload) -> FaultProxy:
    assert workload.proxy
    return workload.proxy


def check(verdict: Verdict) -> None:
    assert verdict.faults() == {}, verdict
    assert min(verdict.accepted.values()) >= 20


async def test_a_halted_network(settings: Settings, database_urls: DatabaseUrls, travel: Travel) -> None:
    async with open_workload(settings, database_urls, travel) as workload:
        proxy = proxy_of(workload)

        async def halt() -> None:
            proxy.halt()

            async def is_refused() -> bool:
                try:
                    async with workload.hub.autocommit():
                        return False
                except Unavailable:
                    return True

            await wait_until(is_refused)
            proxy.pass_bytes()

        check(await workload.run_through(halt))


@pytest.mark.parametrize("seed", [18], ids="seed {}".format)
async def test_connections_that_are_reset_again_and_again(
    settings: Settings, database_urls: DatabaseUrls, travel: Travel, seed: int
) -> None:
    numbers = random.Random(seed)
    async with open_workload(settings, database_urls, travel) as workload:
        proxy = proxy_of(workload)

        async def reset() -> None:
            for _ in range(RESETS):
                accepted = sum(map(len, workload.accepted_at.values())) + numbers.randrange(1, 20)
                await wait_until(lambda: sum(map(len, workload.accepted_at.values())) >= accepted)  # noqa: B023
                proxy.reset()

        check(await workload.run_through(reset))


async def test_answers_that_are_lost(settings: Settings, database_urls: DatabaseUrls, travel: Travel) -> None:
    async with open_workload(settings, database_urls, travel) as workload:
        proxy = proxy_of(workload)

        async def swallow() -> None:
            proxy.swallow_answers()
            dials = proxy.accepted
            await wait_until(lambda: proxy.accepted > dials)  # the pool was found dead and is dialed again
            proxy.lose_open_connections()
            proxy.pass_bytes()

        check(await workload.run_through(swallow))
