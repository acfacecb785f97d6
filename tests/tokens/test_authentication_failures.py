"""Guessing secrets is rate limited, does not lock out the service, and does not reveal which services exist."""

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
from tokens.token_operations import (
    BY,
    SHOP,
    add_shop,
    authenticate_with,
    open_two_hubs,
    owner_connection,
    set_shop_active,
)

pytestmark = pytest.mark.anyio

MINUTE = timedelta(minutes=1)
Travel = Callable[[timedelta], Awaitable[None]]

OTHER_ADDRESS = "198.51.100.1"


async def fail(hub: Hub, count: int, name: str = SHOP, address: str | None = "203.0.113.1") -> None:
    for _ in range(count):
        with pytest.raises(InvalidClient):
            await authenticate_with(hub, name, address=address)


async def audited_failures(database_urls: DatabaseUrls) -> list[tuple[str, str]]:
    """The audit entries of failures: subject and address."""
    async with owner_connection(database_urls) as connection:
        rows = await connection.fetch(
            "select subject, host(client_ip) as address from pabal.audit_log where action = 'authentication.failed' "
            "order by id"
        )
    return [(row["subject"], row["address"]) for row in rows]


async def test_twenty_failures_block_an_address_in_every_process(
    settings: Settings, database_urls: DatabaseUrls
) -> None:
    async with open_two_hubs(settings, database_urls) as (first, second):
        secret = await add_shop(first)
        await fail(first, 10)
        await fail(second, 10, name="nosuch")

        for hub in (first, second):
            with pytest.raises(RateLimited, match="from this address") as refusal:
                await authenticate_with(hub, secret=secret)
            assert timedelta() < refusal.value.retry_after <= FAILURES_PER_ADDRESS.window / FAILURES_PER_ADDRESS.count
        assert (await authenticate_with(second, secret=secret, address=OTHER_ADDRESS)).service == SHOP


async def test_a_blocked_address_is_allowed_again_later(hub: Hub, travel: Travel) -> None:
    secret = await add_shop(hub)
    await fail(hub, FAILURES_PER_ADDRESS.count)
    with pytest.raises(RateLimited) as refusal:
        await authenticate_with(hub)

    await travel(refusal.value.retry_after)
    await fail(hub, 1)
    with pytest.raises(RateLimited):
        await authenticate_with(hub)

    await travel(FAILURES_PER_ADDRESS.window)
    assert (await authenticate_with(hub, secret=secret)).service == SHOP
    await fail(hub, FAILURES_PER_ADDRESS.count)


@pytest.mark.usefixtures("stopped_clock")
async def test_failures_in_a_services_name_do_not_lock_it_out(settings: Settings, database_urls: DatabaseUrls) -> None:
    async with open_two_hubs(settings, database_urls) as (first, second):
        secret = await add_shop(first)
        addresses = [f"203.0.113.{number}" for number in range(FAILURES_PER_SERVICE.count // 10)]
        for address in addresses:
            await fail(first, 10, address=address)

        for address in addresses[:3]:
            with pytest.raises(RateLimited, match="of this service"):
                await authenticate_with(second, secret=secret, address=address)
        with pytest.raises(RateLimited, match="of this service"):
            await authenticate_with(second, address=OTHER_ADDRESS)
        other_secret = await add_shop(first, "other")
        assert (await authenticate_with(second, "other", other_secret, addresses[0])).service == "other"
        for hub in (first, second):
            assert (await authenticate_with(hub, secret=secret, address="198.51.100.2")).service == SHOP


async def test_success_is_not_counted(hub: Hub) -> None:
    secret = await add_shop(hub)
    for _ in range(2 * FAILURES_PER_ADDRESS.count):
        await authenticate_with(hub, secret=secret)
    await fail(hub, FAILURES_PER_ADDRESS.count)


async def test_failures_are_audited_once_per_service_address_and_minute(
    settings: Settings, database_urls: DatabaseUrls, travel: Travel
) -> None:
    async with open_two_hubs(settings, database_urls) as hubs:
        await add_shop(hubs[0])
        await add_shop(hubs[0], "other")

        await asyncio.gather(*(fail_once(hubs[n % 2]) for n in range(8)))
        await fail(hubs[1], 2, "other")
        await fail(hubs[0], 2, address=OTHER_ADDRESS)

        expected = [(SHOP, "203.0.113.1"), ("other", "203.0.113.1"), (SHOP, OTHER_ADDRESS)]
        assert await audited_failures(database_urls) == expected
        await travel(MINUTE)
        await fail(hubs[0], 2)
        assert await audited_failures(database_urls) == [*expected, (SHOP, "203.0.113.1")]


async def fail_once(hub: Hub) -> None:
    with suppress(InvalidClient):
        await authenticate_with(hub)


async def test_unknown_names_share_an_audit_entry_and_are_not_quoted(hub: Hub, database_urls: DatabaseUrls) -> None:
    secret = await add_shop(hub)
    unknown_names = [
        "nosuch",
        "no_one",
        "",
        "?",
        "Shop",
        "x" * 5000,
        "'; drop table services; --",
        secret,
        "가게",
        "a\nb",
    ]
    for name in unknown_names:
        await fail(hub, 1, name)

    assert await audited_failures(database_urls) == [("unknown", "203.0.113.1")]
    async with owner_connection(database_urls) as connection:
        limit_keys = [key for (key,) in await connection.fetch("select key from pabal.limits")]
    assert not [key for key in limit_keys if secret in key or len(key) > 200]


async def test_callers_without_an_address_are_limited(hub: Hub) -> None:
    await add_shop(hub)
    await fail(hub, FAILURES_PER_ADDRESS.count, address=None)

    with pytest.raises(RateLimited):
        await authenticate_with(hub, address=None)


async def test_unknown_wrong_and_disabled_credentials_look_the_same(hub: Hub, database_urls: DatabaseUrls) -> None:
    await add_shop(hub)
    disabled = await add_shop(hub, "disabled")
    await set_shop_active(hub, active=False, name="disabled")
    cases = {
        "first": ("any", "any"),
        "unknown": ("nosuch", "wrong"),
        "wrong": (SHOP, "wrong"),
        "disabled": ("disabled", disabled),
    }
    errors: dict[str, list[tuple[str, str]]] = {}  # the first run is a warm-up for the driver's own queries
    queries: dict[str, list[str]] = {}
    async with asyncpg.create_pool(database_urls.main, min_size=1, max_size=1, init=register_json_codecs) as pool:
        for case, (name, secret) in cases.items():
            actor = replace(BY, client_ip=f"203.0.113.{len(queries) + 1}")
            errors[case], queries[case] = [], []
            async with pool.acquire() as connection:
                with connection.query_logger(lambda record, log=queries[case]: log.append(record.query)):
                    for _ in range(3):
                        with pytest.raises(InvalidClient) as refusal:
                            await authenticate_client(Tx(connection), name, secret, actor)
                        errors[case].append((type(refusal.value).__name__, str(refusal.value)))

    assert errors["unknown"] == errors["wrong"] == errors["disabled"]
    assert len({*queries["unknown"]}) >= 4
    assert queries["unknown"] == queries["wrong"] == queries["disabled"]
    assert not any("nosuch" in text or SHOP in text for case_errors in errors.values() for _, text in case_errors)
