"""Password hashing with argon2, outside the event loop. Unknown names take the same time as known ones."""

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
"""A separate pool: in asyncio's default pool, DNS lookups would wait for password checks."""

Params = ParamSpec("Params")
Result = TypeVar("Result")


@cache
def dummy_password_hash() -> str:
    """A hash to compare with for unknown names; computed at first use, because it is slow."""
    return PASSWORD_HASHER.hash(secrets.token_urlsafe())


def check_password_length(password: str) -> str:
    """Return the password if its length is allowed."""
    if not MIN_PASSWORD_LENGTH <= len(password) <= MAX_PASSWORD_LENGTH:
        raise Invalid.of_field("password", f"must have {MIN_PASSWORD_LENGTH} to {MAX_PASSWORD_LENGTH:,} characters")
    return password


async def hash_password(password: str) -> str:
    """Hash a new password."""
    return await run_in_password_thread(PASSWORD_HASHER.hash, check_password_length(password))


async def verify_password(password: str, stored_hash: str | None) -> bool:
    """Check a password. Without a stored hash, takes the same time and returns False."""
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
    """Generate a password that is easy to copy from a terminal."""
    return secrets.token_urlsafe(15)
