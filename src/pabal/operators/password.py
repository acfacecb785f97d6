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
from pabal.settings import MIN_PASSWORD_LENGTH

PASSWORD_HASHER = PasswordHasher()
MAX_PASSWORD_LENGTH = 1000
PASSWORD_THREADS = ThreadPoolExecutor(2, "passwords")
"""Its own: in asyncio's, whoever looks up a name would wait behind everybody who tries a password."""

Params = ParamSpec("Params")
Result = TypeVar("Result")


@cache
def dummy_password_hash() -> str:
    """A hash to compare with when there is none; made when first needed, as making one takes its time."""
    return PASSWORD_HASHER.hash(secrets.token_urlsafe())


def check_password_length(password: str) -> str:
    """The password, if it may be one."""
    if not MIN_PASSWORD_LENGTH <= len(password) <= MAX_PASSWORD_LENGTH:
        raise Invalid.of_field("password", f"has {MIN_PASSWORD_LENGTH} to {MAX_PASSWORD_LENGTH:,} characters")
    return password


async def hash_password(password: str) -> str:
    """What is kept of a new password."""
    return await run_in_password_thread(PASSWORD_HASHER.hash, check_password_length(password))


async def verify_password(password: str, stored_hash: str | None) -> bool:
    """Compare; without a stored hash the same work is done and the answer is no."""
    try:
        await run_in_password_thread(
            PASSWORD_HASHER.verify, stored_hash or await run_in_password_thread(dummy_password_hash), password
        )
    except (VerificationError, InvalidHashError):
        return False
    return stored_hash is not None


async def run_in_password_thread(
    function: Callable[Params, Result], *args: Params.args, **kwargs: Params.kwargs
) -> Result:
    return await asyncio.wrap_future(PASSWORD_THREADS.submit(function, *args, **kwargs))


def generate_password() -> str:
    """A password somebody can copy from a terminal."""
    return secrets.token_urlsafe(15)
