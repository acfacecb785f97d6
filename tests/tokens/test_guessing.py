"""Who guesses secrets is slowed down, whom they guess at is not, and nobody learns which names there are."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

import asyncpg
import pytest

from pabal.core.errors import InvalidClient, RateLimited
from pabal.db.pool import register_json_codecs
from pabal.db.tx import Tx
from pabal.hub import DatabaseUrls, Hub
from pabal.settings import Settings
from pabal.tokens.issue import FAILURES_PER_ADDRESS, FAILURES_PER_SERVICE, authenticate_client
from tokens.asking import BY, SHOP, added, guess, owner, switch, two_hubs

pytestmark = pytest.mark.anyio

MINUTE = timedelta(minutes=1)
Travel = Callable[[timedelta], Awaitable[None]]

CLEAN = "198.51.100.1"


async def fail(hub: Hub, times: int, name: str = SHOP, address: str | None = "203.0.113.1") -> None:
    for _ in range(times):
        with pytest.raises(InvalidClient):
            await guess(hub, name, address=address)


async def notes(database_urls: DatabaseUrls) -> list[tuple[str, str]]:
    """The failures written down: whose name, and from where."""
    async with owner(database_urls) as connection:
        rows = await connection.fetch(
            "select subject, host(client_ip) as address from pabal.audit_log where action = 'authentication.failed' "
            "order by id"
        )
    return [(each["subject"], each["address"]) for each in rows]


async def test_twenty_failures_close_an_address_for_every_hub(settings: Settings, database_urls: DatabaseUrls) -> None:
    async with two_hubs(settings, database_urls) as (here, there):
        secret = await added(here)
        await fail(here, 10)
        await fail(there, 10, name="nobody")

        for hub in (here, there):
            with pytest.raises(RateLimited, match="from this address") as refusal:
                await guess(hub, secret=secret)
            assert timedelta() < refusal.value.retry_after <= FAILURES_PER_ADDRESS.window / FAILURES_PER_ADDRESS.count
        assert (await guess(there, secret=secret, address=CLEAN)).service == SHOP


async def test_a_closed_address_opens_again_with_time(hub: Hub, travel: Travel) -> None:
    secret = await added(hub)
    await fail(hub, FAILURES_PER_ADDRESS.count)
    with pytest.raises(RateLimited) as refusal:
        await guess(hub)

    await travel(refusal.value.retry_after)
    await fail(hub, 1)
    with pytest.raises(RateLimited):
        await guess(hub)

    await travel(FAILURES_PER_ADDRESS.window)
    assert (await guess(hub, secret=secret)).service == SHOP
    await fail(hub, FAILURES_PER_ADDRESS.count)


@pytest.mark.usefixtures("still")
async def test_nobody_keeps_a_service_out_by_failing_in_its_name(
    settings: Settings, database_urls: DatabaseUrls
) -> None:
    async with two_hubs(settings, database_urls) as (here, there):
        secret = await added(here)
        crowd = [f"203.0.113.{number}" for number in range(FAILURES_PER_SERVICE.count // 10)]
        for address in crowd:
            await fail(here, 10, address=address)

        for address in crowd[:3]:
            with pytest.raises(RateLimited, match="of this service"):
                await guess(there, secret=secret, address=address)
        with pytest.raises(RateLimited, match="of this service"):
            await guess(there, address=CLEAN)
        other = await added(here, "other")
        assert (await guess(there, "other", other, crowd[0])).service == "other"
        for hub in (here, there):
            assert (await guess(hub, secret=secret, address="198.51.100.2")).service == SHOP


async def test_success_is_not_counted(hub: Hub) -> None:
    secret = await added(hub)
    for _ in range(2 * FAILURES_PER_ADDRESS.count):
        await guess(hub, secret=secret)
    await fail(hub, FAILURES_PER_ADDRESS.count)


async def test_a_failure_is_written_down_once_a_service_an_address_and_a_minute(
    settings: Settings, database_urls: DatabaseUrls, travel: Travel
) -> None:
    async with two_hubs(settings, database_urls) as hubs:
        await added(hubs[0])
        await added(hubs[0], "other")

        await asyncio.gather(*(failed(hubs[n % 2]) for n in range(8)))
        await fail(hubs[1], 2, "other")
        await fail(hubs[0], 2, address=CLEAN)

        expected = [(SHOP, "203.0.113.1"), ("other", "203.0.113.1"), (SHOP, CLEAN)]
        assert await notes(database_urls) == expected
        await travel(MINUTE)
        await fail(hubs[0], 2)
        assert await notes(database_urls) == [*expected, (SHOP, "203.0.113.1")]


async def failed(hub: Hub) -> None:
    with suppress(InvalidClient):
        await guess(hub)


async def test_names_nobody_has_are_written_down_together_and_never_quoted(
    hub: Hub, database_urls: DatabaseUrls
) -> None:
    secret = await added(hub)
    strange = ["nobody", "no_one", "", "?", "Shop", "x" * 5000, "'; drop table services; --", secret, "가게", "a\nb"]
    for name in strange:
        await fail(hub, 1, name)

    assert await notes(database_urls) == [("unknown", "203.0.113.1")]
    async with owner(database_urls) as connection:
        kept = [key for (key,) in await connection.fetch("select key from pabal.limits")]
    assert not [key for key in kept if secret in key or len(key) > 200]


async def test_who_comes_from_nowhere_is_limited_too(hub: Hub) -> None:
    await added(hub)
    await fail(hub, FAILURES_PER_ADDRESS.count, address=None)

    with pytest.raises(RateLimited):
        await guess(hub, address=None)


async def test_unknown_wrong_and_disabled_cannot_be_told_apart(hub: Hub, database_urls: DatabaseUrls) -> None:
    await added(hub)
    disabled = await added(hub, "disabled")
    await switch(hub, active=False, name="disabled")
    cases = {
        "first": ("any", "any"),
        "unknown": ("nobody", "wrong"),
        "wrong": (SHOP, "wrong"),
        "disabled": ("disabled", disabled),
    }
    said: dict[str, list[tuple[str, str]]] = {}  # the first is for the driver, which has questions of its own
    done: dict[str, list[str]] = {}
    async with asyncpg.create_pool(database_urls.main, min_size=1, max_size=1, init=register_json_codecs) as pool:
        for case, (name, secret) in cases.items():
            by = replace(BY, client_ip=f"203.0.113.{len(done) + 1}")
            said[case], done[case] = [], []
            async with pool.acquire() as connection:
                with connection.query_logger(lambda logged, to=done[case]: to.append(logged.query)):
                    for _ in range(3):
                        with pytest.raises(InvalidClient) as refusal:
                            await authenticate_client(Tx(connection), name, secret, by)
                        said[case].append((type(refusal.value).__name__, str(refusal.value)))

    assert said["unknown"] == said["wrong"] == said["disabled"]
    assert len({*done["unknown"]}) >= 4
    assert done["unknown"] == done["wrong"] == done["disabled"]
    assert not any("nobody" in text or SHOP in text for each in said.values() for _, text in each)
