"""Passwords: argon2, off the event loop, the same time for a name we know and one we do not."""

import asyncio
import secrets

from argon2 import PasswordHasher
from argon2.exceptions import VerificationError

HASHER = PasswordHasher()
NOBODYS = HASHER.hash("nobody has this password")


async def hashed(password: str) -> str:
    return await asyncio.to_thread(HASHER.hash, password)


async def fits(password: str, stored: str | None) -> bool:
    """Compare; without a stored hash the same work is done and the answer is no."""
    try:
        await asyncio.to_thread(HASHER.verify, stored or NOBODYS, password)
    except VerificationError:
        return False
    return stored is not None


def made_up() -> str:
    """A password somebody can copy from a terminal."""
    return secrets.token_urlsafe(15)
