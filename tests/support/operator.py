"""Signed-in operators of the console, with an HTTP client or a browser."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest
from argon2 import PasswordHasher
from playwright.async_api import BrowserContext, Page, expect

from pabal.console.access.login import CONSOLE_PATH, OPERATOR_COOKIE
from pabal.core.actor import Actor
from pabal.hub import Hub
from pabal.operators import password
from pabal.operators.operators import OperatorSession, Role, add_operator, find_operator_credentials
from pabal.operators.password import hash_password
from pabal.operators.sessions import authenticate_operator, create_operator_session, find_operator_session
from support.browser import open_page

PASSWORD = "correct horse"
HOSTILE = """<script>alert(1)</script>"><img src=x onerror=alert(1)>'};alert(1);//{{7*7}}</pre>"""
"""A value that tries to break out of HTML, JavaScript and template contexts."""


@dataclass(frozen=True, slots=True)
class SignedInOperator:
    """An HTTP client of a signed-in operator."""

    web: httpx2.AsyncClient
    session: OperatorSession
    token: str

    async def get(self, path: str, language: str = "en") -> httpx2.Response:
        return await self.web.get(path, headers={"cookie": self._cookie, "accept-language": language})

    async def post(self, path: str, /, **fields: Any) -> httpx2.Response:
        """Submit a form with the CSRF token of the session; `csrf_token=` overrides it."""
        headers = {"cookie": self._cookie, "accept-language": "en", "origin": str(self.web.base_url).rstrip("/")}
        return await self.web.post(path, data={"csrf_token": self.session.csrf.hex(), **fields}, headers=headers)

    @property
    def _cookie(self) -> str:
        return f"{OPERATOR_COOKIE}={self.token}"


@contextmanager
def fast_password_hashing() -> Generator[None]:
    """Hash passwords inside the block with minimal cost, those that are compared for unknown names included."""
    password.dummy_password_hash.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(password, "PASSWORD_HASHER", PasswordHasher(time_cost=1, memory_cost=8, parallelism=1))
        yield
    password.dummy_password_hash.cache_clear()


async def sign_in(hub: Hub, web: httpx2.AsyncClient, role: Role, name: str = "") -> SignedInOperator:
    name = name or f"the-{role}"
    with fast_password_hashing():
        return await add_signed_in_operator(hub, web, role, name)


async def add_signed_in_operator(hub: Hub, web: httpx2.AsyncClient, role: Role, name: str) -> SignedInOperator:
    async with hub.transaction() as tx:
        await add_operator(tx, name, await hash_password(PASSWORD), role)
        credentials = await authenticate_operator(await find_operator_credentials(tx, name), PASSWORD)
        token = await create_operator_session(tx, credentials, Actor(f"operator:{name}"))
        session = await find_operator_session(tx, token)
    assert session is not None
    return SignedInOperator(web, session, token)


async def add_operator_cookie(context: BrowserContext, hub: Hub) -> None:
    """Sign the operator `admin` in without the form, whose pages cost more than those of most tests."""
    async with hub.transaction() as tx:
        credentials = await find_operator_credentials(tx, "admin")
        assert credentials
        token = await create_operator_session(tx, credentials, Actor("operator:admin"))
    await context.add_cookies(
        [
            {
                "name": OPERATOR_COOKIE,
                "value": token,
                "domain": "127.0.0.1",
                "path": CONSOLE_PATH,
                "httpOnly": True,
                "sameSite": "Lax",
            }
        ]
    )


async def open_console(page: Page, hub: Hub, path: str = CONSOLE_PATH) -> None:
    """Open a page of the console as the signed-in operator `admin`."""
    await add_operator_cookie(page.context, hub)
    await open_page(page, path)


async def sign_in_on_page(page: Page) -> None:
    """Sign in with the English form."""
    await page.goto("/")
    await page.get_by_label("Password").fill(PASSWORD)
    await page.get_by_role("button", name="Sign in").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
    await page.wait_for_load_state()  # including the script that handles keys


def is_escaped(page: httpx2.Response) -> bool:
    """Return whether HOSTILE is escaped everywhere in the page."""
    return "<script>alert" not in page.text and "<img src=x" not in page.text
