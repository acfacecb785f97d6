"""Strangers who guess passwords do not keep an operator waiting."""

import asyncio

import httpx2
import pytest
from argon2 import PasswordHasher

from console.test_sessions import enter
from pabal.console.access.sign_in_queue import CONCURRENT_CHECKS, MAX_WAITING_SIGN_INS, SignInQueue
from pabal.core.errors import RateLimited
from pabal.hub import DatabaseUrls, open_hub
from pabal.operators import password
from pabal.operators.operators import ensure_first_operator
from pabal.settings import Settings
from support.operator import PASSWORD
from support.server import serve_hub

pytestmark = pytest.mark.anyio


class CheckedSignIns:
    """Sign-ins whose check ends when the test says so, in the order in which they were checked."""

    def __init__(self) -> None:
        self.queue = SignInQueue()
        self.checked: list[str] = []
        self.tasks: list[asyncio.Task[None]] = []
        self._may_end = asyncio.Semaphore(0)

    async def add(self, *addresses: str, has_failed: bool = False) -> None:
        self.tasks += [asyncio.create_task(self._sign_in(address, has_failed)) for address in addresses]
        await asyncio.sleep(0)

    async def end_all(self) -> list[BaseException | None]:
        for _ in self.tasks:
            self._may_end.release()
        return await asyncio.gather(*self.tasks, return_exceptions=True)

    async def _sign_in(self, address: str, has_failed: bool) -> None:
        async with self.queue.turn(address, has_failed=has_failed):
            self.checked.append(address)
            await self._may_end.acquire()


async def test_the_first_sign_in_of_an_address_without_a_failure_comes_first() -> None:
    sign_ins = CheckedSignIns()
    await sign_ins.add("a", "a")
    await sign_ins.add("failed", has_failed=True)
    await sign_ins.add("a", "a", "b", "b", "operator")

    await sign_ins.end_all()

    assert sign_ins.checked == ["a", "a", "operator", "b", "b", "a", "a", "failed"]


async def test_beyond_a_limit_the_last_in_order_is_refused() -> None:
    sign_ins = CheckedSignIns()
    await sign_ins.add(*["a"] * (CONCURRENT_CHECKS + MAX_WAITING_SIGN_INS), "operator")

    results = await sign_ins.end_all()

    assert [type(result) for result in results if result] == [RateLimited]
    assert sign_ins.checked[CONCURRENT_CHECKS] == "operator"


async def test_a_cancelled_sign_in_gives_its_turn_to_the_next() -> None:
    sign_ins = CheckedSignIns()
    await sign_ins.add("a", "b", "c", "d")
    for task in sign_ins.tasks[:-1]:
        task.cancel()

    await sign_ins.end_all()

    assert sign_ins.checked == ["a", "b", "d"]


async def test_an_operator_signs_in_while_strangers_guess(
    database_urls: DatabaseUrls, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(password, "PASSWORD_HASHER", PasswordHasher())  # as slow as in production
    behind = settings.model_copy(update={"trusted_proxies": ["127.0.0.1"]})
    async with (
        open_hub(behind, database_urls) as hub,
        serve_hub(hub) as address,
        httpx2.AsyncClient(base_url=address, timeout=60) as web,
    ):
        async with hub.transaction() as tx:
            await ensure_first_operator(tx, PASSWORD)
        await web.get("/console/login")  # one cookie for all forms
        guesses = [
            asyncio.create_task(enter(web, "wrong horse", "admin", **{"x-forwarded-for": f"192.0.2.{number % 4}"}))
            for number in range(40)
        ]
        await asyncio.wait(guesses, return_when=asyncio.FIRST_COMPLETED)

        operator = await enter(web, PASSWORD, "admin", **{"x-forwarded-for": "192.0.2.100"})

        unfinished = sum(not guess.done() for guess in guesses)
        responses = await asyncio.gather(*guesses)
    assert {response.status_code for response in responses} == {401}
    assert operator.status_code == 303
    assert unfinished > 10
