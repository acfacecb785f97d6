"""Passwords are checked in a thread pool of their own."""

import asyncio
import threading

import pytest

from pabal.operators.password import hash_password, run_in_password_thread, verify_password

pytestmark = pytest.mark.anyio

CROWD = 64
"""More than asyncio's default thread pool has threads."""


async def test_passwords_and_other_threads_do_not_wait_for_each_other() -> None:
    full = threading.Event()
    stored = await hash_password("correct horse")
    others = [asyncio.create_task(asyncio.to_thread(full.wait)) for _ in range(CROWD)]
    try:
        async with asyncio.timeout(20):
            assert await verify_password("correct horse", stored)
            assert not await verify_password("wrong horse", None)
    finally:
        full.set()
        await asyncio.gather(*others)

    async with asyncio.timeout(20):
        held = threading.Event()
        trying = [asyncio.create_task(run_in_password_thread(held.wait)) for _ in range(CROWD)]
        try:
            await asyncio.to_thread(lambda: None)
            assert not any(each.done() for each in trying)
        finally:
            held.set()
            await asyncio.gather(*trying)


async def test_concurrent_password_checks_use_few_threads() -> None:
    await asyncio.gather(*(verify_password("wrong horse", None) for _ in range(8)))

    assert 1 <= sum(each.name.startswith("passwords") for each in threading.enumerate()) <= 4
