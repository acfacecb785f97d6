"""Take pictures of the console with something going on in it: `make screenshots`.

A demo is started, a browser signs in, and the two pictures of the README are taken. `--all FOLDER` takes every page
instead: wide and narrow, by day and by night, in Korean and in English; then those of a hub with nothing in it.
"""  # noqa: INP001 run as a module, installed nowhere

import argparse
import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal

import asyncpg
import httpx2
from playwright.async_api import Browser, Page, ViewportSize, async_playwright

from pabal.cli.target import running_target
from pabal.demo.run import VISITOR_USER
from pabal.settings import Settings

PICTURES = Path(__file__).parent.parent / "docs" / "pictures"
PABAL = Path(sys.executable).with_name("pabal")
WIDE, NARROW = ViewportSize(width=1280, height=800), ViewportSize(width=375, height=740)
TALL = ViewportSize(width=1280, height=960)
AWHILE = 75
"""Seconds until the shop has sold something, and something has gone wrong."""
HEAVIEST = 300_000
"""Bytes a picture of the README may have."""

HOUR = """
insert into pabal.throughput (minute, lane, done, failed, dead)
select date_trunc('minute', pabal.now()) - n * interval '1 minute', l.lane,
       round(l.often * (1 + 0.5 * sin(n / 7.0) + 0.3 * sin(n * 1.9))),
       case when n % 13 < 2 then l.often / 8 else 0 end, 0
from generate_series(1, 59) n, (values ('relay', 6), ('events', 70), ('notifications', 18)) l (lane, often)
on conflict do nothing
"""
"""The hour before, made up: a demo is a minute old, and its charts would be empty."""

Scheme = Literal["light", "dark"]
Language = Literal["ko", "en"]


@dataclass(frozen=True, slots=True)
class There:
    """Where a hub is, and how to come in; a demo has a chat and a person besides."""

    folder: Path
    console: str
    password: str
    chat: str = ""
    person: str = ""


@dataclass(frozen=True, slots=True)
class Look:
    """Who looks, on what."""

    scheme: Scheme
    language: Language
    size: ViewportSize

    def __str__(self) -> str:
        return f"{'wide' if self.size is WIDE else 'phone'}-{self.language}-{self.scheme}"


ORDER = "order-1008"
README = (
    ("overview", "/console", Look("light", "en", TALL)),
    ("trace", f"/console/trace?id={ORDER}", Look("dark", "en", TALL)),
)
LOOKS = [Look(*each) for each in product(("light", "dark"), ("ko", "en"), (WIDE, NARROW))]
ROOMS = ("", "events", "dead", "services", "relay", "notifications", "trace", "audit", "health", "you")
LEADING = (
    "events",
    "dead",
    "dead/letters",
    "services",
    "relay",
    "relay/conversations",
    "relay/messages",
    "notifications",
    "notifications/rules",
)
"""Rooms whose first row leads to a page worth a picture."""
TRACED = ("events", "dead/letters", "relay/messages", "notifications")
"""Rooms whose first row has a story of its own."""
FURTHER = (
    "dead/letters",
    "relay/conversations",
    "relay/messages",
    "relay/failures",
    "notifications/templates",
    "notifications/templates/payment.failed",
    "notifications/rules",
    "notifications/rules/new",
    "notifications/addresses",
    "notifications?state=suppressed",
    "notifications?template=antinuke.triggered",
    f"trace?id={ORDER}",
    "trace?id=nothing-like-that",
    "audit?actor=nobody",
)
THEIRS = {
    "portal": "/portal",
    "portal-messages": "/portal/messages",
    "chat": "/chat",
    "me": "/me",
    "me-archived": "/me?view=archived",
}
"""What is there for others than operators."""
OUTSIDE = {"login": "/console/login", "portal-login": "/portal/login", "docs": "/docs"}
"""Pages without a login."""


def main() -> None:
    asked = argparse.ArgumentParser(description="Take pictures of the console with something going on in it.")
    asked.add_argument("--all", type=Path, metavar="FOLDER", help="every page, into this folder")
    asked.add_argument("--port", type=int, default=8790, help="where the demo is to be")
    given = asked.parse_args()
    (given.all or PICTURES).mkdir(parents=True, exist_ok=True)
    with started("demo", given.port) as there:
        asyncio.run(look_around(there, given.all))
    if given.all:
        with started("up", given.port) as there:
            asyncio.run(look_at_nothing(there, given.all))


@contextmanager
def started(what: Literal["demo", "up"], port: int) -> Generator[There]:
    """A hub, from the moment it has said where it is to its end."""
    with tempfile.TemporaryDirectory(prefix="pabal-pictures-") as made:
        folder = Path(made)
        folder.chmod(0o711)  # as root, the database runs as another user, who must be able to enter
        words = [PABAL, what, "--port", str(port), "--data-dir", folder / "data"]
        quiet = {**os.environ, "PABAL_LOG_LEVEL": "error"}
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=quiet)  # noqa: S603 our own
        try:
            yield There(folder / "data", **dict(greeting(process)))
        finally:
            process.send_signal(signal.SIGINT)
            process.wait()


def greeting(process: "subprocess.Popen[str]") -> Iterator[tuple[str, str]]:
    assert process.stdout
    for line in process.stdout:
        if found := re.search(r"^Chat +(\S+)", line):
            yield "chat", found[1]
        elif found := re.search(r"^Console +(\S+) .* with the password (.+)\)", line):
            yield "console", found[1]
            yield "password", found[2]
        elif found := re.search(r"^Person +(\S+)", line):
            yield "person", found[1]
        elif found := re.search(r"^Pabal is at (\S+)", line):
            yield "console", found[1]
        elif found := re.search(r"^  sign in as admin with the password (\S+)", line):
            yield "password", found[1]
            return
        elif line.startswith("Stop"):
            return


async def look_around(there: There, folder: Path | None) -> None:
    await an_hour(there)
    await asyncio.sleep(AWHILE)
    async with browser() as chromium:
        state = await signed_in(chromium, there)
        if folder is None:
            await for_the_readme(chromium, there, state)
        else:
            await every_page(chromium, there, state, folder)
            await every_page(chromium, there, None, folder)


async def look_at_nothing(there: There, folder: Path) -> None:
    async with browser() as chromium:
        await every_page(chromium, there, await signed_in(chromium, there), folder)


async def an_hour(there: There) -> None:
    database_urls = running_target(Settings(_env_file=None, data_dir=there.folder)).urls  # pyright: ignore[reportCallIssue]
    connection = await asyncpg.connect(database_urls.main)
    await connection.execute(HOUR)
    await connection.close()


async def for_the_readme(chromium: Browser, there: There, state: Any) -> None:
    """The overview by day, and what became of an order by night."""
    for name, path, look in README:
        async with window(chromium, there, look, state) as page:
            await show(page, path)
            picture = await page.screenshot(path=PICTURES / f"{name}.png")
        assert len(picture) < HEAVIEST, f"{name}.png has {len(picture)} bytes"


async def every_page(chromium: Browser, there: There, state: Any, folder: Path) -> None:
    """Every page; without a `state`, the pages without a login."""
    paths = await found(chromium, there, state) if state else OUTSIDE
    for look in LOOKS:
        async with window(chromium, there, look, state) as page:
            for name, path in paths.items():
                await show(page, path)
                await page.screenshot(path=folder / f"{name}-{look}{'' if there.chat else '-none'}.png", full_page=True)


async def show(page: Page, path: str) -> None:
    answer = await page.goto(path)
    assert answer, path
    assert answer.ok, f"{path} is {answer.status}"


async def found(chromium: Browser, there: There, state: Any) -> dict[str, str]:
    """Every page there is, by its name: the rooms, what their first rows lead to, and some behind them."""
    paths = {named(room) or "overview": f"/console/{room}".rstrip("/") for room in (*ROOMS, *FURTHER)}
    async with window(chromium, there, LOOKS[0], state) as page:
        for room in LEADING:
            await page.goto(f"/console/{room}")
            if await (first := page.locator("[data-row]").first).count():
                paths[f"{named(room)}-one"] = href = str(await first.get_attribute("href"))
                if room in TRACED:
                    paths[f"{named(room)}-traced"] = f"/console/trace?id={href.rpartition('/')[2]}"
    return paths | (THEIRS if there.chat else {})


def named(path: str) -> str:
    return re.sub(r"[/?=.]", "-", path)


async def signed_in(chromium: Browser, there: There) -> Any:
    """The cookies of all roles at once: an operator, a bot owner, a chat user, a person with notifications.

    In a hub with nothing in it there is only the operator.
    """
    context = await chromium.new_context(base_url=there.console, locale="en")
    page = await context.new_page()
    await page.goto("/console/login")
    await page.locator("input[name=password]").fill(there.password)
    await page.keyboard.press("Enter")
    await page.wait_for_url(re.compile(r"/console$"))
    if there.chat:
        await own_a_bot(page)
        for link in (there.person, await asked_for(there)):
            await page.goto(link)
            await page.locator("button.main").click()
            await page.wait_for_url(re.compile(r"/(me|chat)$"))
    state = await context.storage_state()
    await context.close()
    return state


async def own_a_bot(page: Page) -> None:
    """Come to the portal as the owner of the sample bot: an operator makes a token, the owner shows it."""
    await page.goto("/console/relay")
    await page.locator("[data-row]").first.click()
    await page.locator("form[action$=rotate] button").click()
    await page.locator("button.main.danger").click()
    token = await page.locator(".secret").inner_text()
    await page.goto("/portal/login")
    await page.locator("input[name=token]").fill(token.strip())
    await page.keyboard.press("Enter")
    await page.wait_for_url(re.compile(r"/portal$"))


async def asked_for(there: There) -> str:
    """The link to the sample visitor's own page, which they ask for in the chat."""
    said = f"{there.chat}/chats/{VISITOR_USER}"
    async with httpx2.AsyncClient(trust_env=False) as web:
        await web.post(said, json={"text": "/code"})
        async with web.stream("GET", said) as stream:
            told = ""
            async for chunk in stream.aiter_text():
                told += chunk
                if found := re.search(r"http[^\s\"]*/chat\?code=[\w-]+", told):
                    return found[0]
    raise AssertionError(told)


@asynccontextmanager
async def window(chromium: Browser, there: There, look: Look, state: Any) -> AsyncGenerator[Page]:
    context = await chromium.new_context(
        base_url=there.console,
        locale="ko-KR" if look.language == "ko" else "en-GB",
        timezone_id="Asia/Seoul",
        viewport=look.size,
        color_scheme=look.scheme,
        storage_state=state,
    )
    yield await context.new_page()
    await context.close()


@asynccontextmanager
async def browser() -> AsyncGenerator[Browser]:
    async with async_playwright() as playwright:
        chromium = await playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        yield chromium
        await chromium.close()


if __name__ == "__main__":
    main()
