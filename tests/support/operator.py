"""An operator who is signed in to the console: with a client of HTTP, or with a browser's window."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest
from argon2 import PasswordHasher
from playwright.async_api import Page, expect

from pabal.console.login import OPERATOR_COOKIE
from pabal.core.actor import Actor
from pabal.hub import Hub
from pabal.operators import password
from pabal.operators.operators import OperatorSession, Role, add_operator, find_operator_credentials
from pabal.operators.sessions import authenticate_operator, create_operator_session, find_operator_session

PASSWORD = "correct horse"
HOSTILE = """<script>alert(1)</script>"><img src=x onerror=alert(1)>'};alert(1);//{{7*7}}</pre>"""
"""What somebody writes into a field who wants to own the console."""


@dataclass(frozen=True, slots=True)
class Signed:
    """A signed-in operator's client."""

    web: httpx2.AsyncClient
    session: OperatorSession
    token: str

    async def get(self, path: str, language: str = "en") -> httpx2.Response:
        return await self.web.get(path, headers={"cookie": self._cookie, "accept-language": language})

    async def post(self, path: str, /, **given: Any) -> httpx2.Response:
        """Send a form as a page of the console would; `csrf_token=` sends another token than the session's."""
        headers = {"cookie": self._cookie, "accept-language": "en", "origin": str(self.web.base_url).rstrip("/")}
        return await self.web.post(path, data={"csrf_token": self.session.csrf.hex(), **given}, headers=headers)

    @property
    def _cookie(self) -> str:
        return f"{OPERATOR_COOKIE}={self.token}"


@contextmanager
def hasty() -> Generator[None]:
    """Whoever is added meanwhile has a password that is hashed and compared in no time, here and ever after."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(password, "PASSWORD_HASHER", PasswordHasher(time_cost=1, memory_cost=8, parallelism=1))
        yield


async def sign_in(hub: Hub, web: httpx2.AsyncClient, role: Role, name: str = "") -> Signed:
    name = name or f"the-{role}"
    with hasty():
        return await signed(hub, web, role, name)


async def signed(hub: Hub, web: httpx2.AsyncClient, role: Role, name: str) -> Signed:
    async with hub.transaction() as tx:
        await add_operator(tx, name, PASSWORD, role)
        known = await authenticate_operator(await find_operator_credentials(tx, name), PASSWORD)
        token = await create_operator_session(tx, known, Actor(f"operator:{name}"))
        session = await find_operator_session(tx, token)
    assert session is not None
    return Signed(web, session, token)


async def enter(page: Page) -> None:
    """Sign in by the form, in English."""
    await page.goto("/")
    await page.get_by_label("Password").fill(PASSWORD)
    await page.get_by_role("button", name="Sign in").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
    await page.wait_for_load_state()  # with the script, which listens to keys


def unharmed(page: httpx2.Response) -> bool:
    """Whether nothing hostile stands in the page as itself."""
    return "<script>alert" not in page.text and "<img src=x" not in page.text
