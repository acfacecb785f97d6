"""Passwords: argon2, off the event loop, the same time for a name we know and one we do not."""

import asyncio
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import ParamSpec, TypeVar

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from pabal.core.errors import Invalid
from pabal.settings import MIN_PASSWORD

HASHER = PasswordHasher()
LONGEST = 1000
THREADS = ThreadPoolExecutor(2, "passwords")
"""Its own: in asyncio's, whoever looks up a name would wait behind everybody who tries a password."""

How = ParamSpec("How")
Got = TypeVar("Got")


@cache
def nobodys() -> str:
    """A hash to compare with when there is none; made when first needed, as making one takes its time."""
    return HASHER.hash(secrets.token_urlsafe())


def allowed(password: str) -> str:
    """The password, if it may be one."""
    if not MIN_PASSWORD <= len(password) <= LONGEST:
        raise Invalid.one("password", f"has {MIN_PASSWORD} to {LONGEST:,} characters")
    return password


async def hashed(password: str) -> str:
    """What is kept of a new password."""
    return await aside(HASHER.hash, allowed(password))


async def fits(password: str, stored: str | None) -> bool:
    """Compare; without a stored hash the same work is done and the answer is no."""
    try:
        await aside(HASHER.verify, stored or await aside(nobodys), password)
    except (VerificationError, InvalidHashError):
        return False
    return stored is not None


async def aside(work: Callable[How, Got], *args: How.args, **kwargs: How.kwargs) -> Got:
    return await asyncio.wrap_future(THREADS.submit(work, *args, **kwargs))


def made_up() -> str:
    """A password somebody can copy from a terminal."""
    return secrets.token_urlsafe(15)
