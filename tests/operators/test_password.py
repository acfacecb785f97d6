"""Passwords are checked in their own thread pool."""

import asyncio
import threading

import pytest

from pabal.operators.password import hash_password, run_in_password_thread, verify_password

pytestmark = pytest.mark.anyio

TASK_COUNT = 64
"""More than asyncio's default thread pool has threads."""


async def test_passwords_and_other_threads_do_not_wait_for_each_other() -> None:
    release = threading.Event()
    password_hash = await hash_password("correct horse")
    others = [asyncio.create_task(asyncio.to_thread(release.wait)) for _ in range(TASK_COUNT)]
    try:
        async with asyncio.timeout(20):
            assert await verify_password("correct horse", password_hash)
            assert not await verify_password("wrong horse", None)
    finally:
        release.set()
        await asyncio.gather(*others)

    async with asyncio.timeout(20):
        release_passwords = threading.Event()
        checks = [asyncio.create_task(run_in_password_thread(release_passwords.wait)) for _ in range(TASK_COUNT)]
        try:
            await asyncio.to_thread(lambda: None)
            assert not any(check.done() for check in checks)
        finally:
            release_passwords.set()
            await asyncio.gather(*checks)


async def test_concurrent_password_checks_use_few_threads() -> None:
    await asyncio.gather(*(verify_password("wrong horse", None) for _ in range(8)))

    assert 1 <= sum(thread.name.startswith("passwords") for thread in threading.enumerate()) <= 4
