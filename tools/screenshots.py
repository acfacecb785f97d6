"""Take screenshots of the demo: `make screenshots`.

Starts a demo, signs in and takes the two screenshots of the README. `--all FOLDER` takes every page instead: wide and
narrow, light and dark, in Korean and in English, and then the pages of an empty hub.
"""  # noqa: INP001 run as a module, not installed

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
WARM_UP_SECONDS = 75
"""Until the shop has sold something and a delivery has failed."""
MAX_PICTURE_BYTES = 300_000
"""The limit of a screenshot in the README."""

INSERT_THROUGHPUT = """
insert into pabal.throughput (minute, lane, done, failed, dead)
select date_trunc('minute', pabal.now()) - n * interval '1 minute', l.lane,
       round(l.often * (1 + 0.5 * sin(n / 7.0) + 0.3 * sin(n * 1.9))),
       case when n % 13 < 2 then l.often / 8 else 0 end, 0
from generate_series(1, 59) n, (values ('relay', 6), ('events', 70), ('notifications', 18)) l (lane, often)
on conflict do nothing
"""
"""Made-up throughput of the last hour, because the charts of a new demo are empty."""

Scheme = Literal["light", "dark"]
Language = Literal["ko", "en"]


@dataclass(frozen=True, slots=True)
class DemoAddress:
    """The address and the password of a hub; a demo also has a chat and a person."""

    folder: Path
    console: str
    password: str
    chat: str = ""
    person: str = ""


@dataclass(frozen=True, slots=True)
class Viewport:
    """The color scheme, the language and the size of a page."""

    scheme: Scheme
    language: Language
    size: ViewportSize

    def __str__(self) -> str:
        return f"{'wide' if self.size is WIDE else 'phone'}-{self.language}-{self.scheme}"


ORDER = "order-1008"
README = (
    ("overview", "/console", Viewport("light", "en", TALL)),
    ("trace", f"/console/trace?id={ORDER}", Viewport("dark", "en", TALL)),
)
VIEWPORTS = [Viewport(*values) for values in product(("light", "dark"), ("ko", "en"), (WIDE, NARROW))]
PAGES = ("", "events", "dead", "services", "relay", "notifications", "trace", "audit", "health", "you")
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
"""Pages whose first row has a page of its own."""
TRACED = ("events", "dead/letters", "relay/messages", "notifications")
"""Pages whose first row has a trace."""
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
USER_PAGES = {
    "portal": "/portal",
    "portal-messages": "/portal/messages",
    "chat": "/chat",
    "me": "/me",
    "me-archived": "/me?view=archived",
}
"""What is address for others than operators."""
PUBLIC_PAGES = {"login": "/console/login", "portal-login": "/portal/login", "docs": "/docs"}
"""Pages without a login."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Take screenshots of the demo.")
    parser.add_argument("--all", type=Path, metavar="FOLDER", help="every page, into this folder")
    parser.add_argument("--port", type=int, default=8790, help="port of the demo")
    options = parser.parse_args()
    (options.all or PICTURES).mkdir(parents=True, exist_ok=True)
    with run_hub("demo", options.port) as address:
        asyncio.run(take_demo_screenshots(address, options.all))
    if options.all:
        with run_hub("up", options.port) as address:
            asyncio.run(take_empty_screenshots(address, options.all))


@contextmanager
def run_hub(command: Literal["demo", "up"], port: int) -> Generator[DemoAddress]:
    """Run a hub and yield its address."""
    with tempfile.TemporaryDirectory(prefix="pabal-pictures-") as name:
        folder = Path(name)
        folder.chmod(0o711)  # as root, the database runs as another user, who must be able to enter
        arguments = [PABAL, command, "--port", str(port), "--data-dir", folder / "data"]
        environment = {**os.environ, "PABAL_LOG_LEVEL": "error"}
        process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=environment)  # noqa: S603 our own
        try:
            yield DemoAddress(folder / "data", **dict(read_greeting(process)))
        finally:
            process.send_signal(signal.SIGINT)
            process.wait()


def read_greeting(process: "subprocess.Popen[str]") -> Iterator[tuple[str, str]]:
    assert process.stdout
    for line in process.stdout:
        if match := re.search(r"^Chat +(\S+)", line):
            yield "chat", match[1]
        elif match := re.search(r"^Console +(\S+) .* with the password (.+)\)", line):
            yield "console", match[1]
            yield "password", match[2]
        elif match := re.search(r"^Person +(\S+)", line):
            yield "person", match[1]
        elif match := re.search(r"^Pabal is at (\S+)", line):
            yield "console", match[1]
        elif match := re.search(r"^  sign in as admin with the password (\S+)", line):
            yield "password", match[1]
            return
        elif line.startswith("Stop"):
            return


async def take_demo_screenshots(address: DemoAddress, folder: Path | None) -> None:
    await insert_throughput(address)
    await asyncio.sleep(WARM_UP_SECONDS)
    async with browser() as chromium:
        state = await sign_in(chromium, address)
        if folder is None:
            await take_readme_screenshots(chromium, address, state)
        else:
            await take_pages(chromium, address, state, folder)
            await take_pages(chromium, address, None, folder)


async def take_empty_screenshots(address: DemoAddress, folder: Path) -> None:
    async with browser() as chromium:
        await take_pages(chromium, address, await sign_in(chromium, address), folder)


async def insert_throughput(address: DemoAddress) -> None:
    database_urls = running_target(Settings(_env_file=None, data_dir=address.folder)).urls  # pyright: ignore[reportCallIssue]
    connection = await asyncpg.connect(database_urls.main)
    await connection.execute(INSERT_THROUGHPUT)
    await connection.close()


async def take_readme_screenshots(chromium: Browser, address: DemoAddress, state: Any) -> None:
    """The overview in light colors and the trace of an order in dark ones."""
    for name, path, viewport in README:
        async with window(chromium, address, viewport, state) as page:
            await open_page(page, path)
            picture = await page.screenshot(path=PICTURES / f"{name}.png")
        assert len(picture) < MAX_PICTURE_BYTES, f"{name}.png has {len(picture)} bytes"


async def take_pages(chromium: Browser, address: DemoAddress, state: Any, folder: Path) -> None:
    """Every page; without a `state`, the pages without a login."""
    paths = await list_pages(chromium, address, state) if state else PUBLIC_PAGES
    for viewport in VIEWPORTS:
        async with window(chromium, address, viewport, state) as page:
            for name, path in paths.items():
                await open_page(page, path)
                await page.screenshot(
                    path=folder / f"{name}-{viewport}{'' if address.chat else '-none'}.png", full_page=True
                )


async def open_page(page: Page, path: str) -> None:
    response = await page.goto(path)
    assert response, path
    assert response.ok, f"{path} is {response.status}"


async def list_pages(chromium: Browser, address: DemoAddress, state: Any) -> dict[str, str]:
    """The path of every page by its name: PAGES, the pages of their first rows, and FURTHER."""
    paths = {file_name(name) or "overview": f"/console/{name}".rstrip("/") for name in (*PAGES, *FURTHER)}
    async with window(chromium, address, VIEWPORTS[0], state) as page:
        for name in LEADING:
            await page.goto(f"/console/{name}")
            if await (first := page.locator("[data-row]").first).count():
                paths[f"{file_name(name)}-one"] = href = str(await first.get_attribute("href"))
                if name in TRACED:
                    paths[f"{file_name(name)}-traced"] = f"/console/trace?id={href.rpartition('/')[2]}"
    return paths | (USER_PAGES if address.chat else {})


def file_name(path: str) -> str:
    return re.sub(r"[/?=.]", "-", path)


async def sign_in(chromium: Browser, address: DemoAddress) -> Any:
    """The cookies of all roles at once: an operator, a bot owner, a chat user, a person with notifications.

    In an empty hub there is only the operator.
    """
    context = await chromium.new_context(base_url=address.console, locale="en")
    page = await context.new_page()
    await page.goto("/console/login")
    await page.locator("input[name=password]").fill(address.password)
    await page.keyboard.press("Enter")
    await page.wait_for_url(re.compile(r"/console$"))
    if address.chat:
        await sign_in_to_portal(page)
        for link in (address.person, await request_chat_link(address)):
            await page.goto(link)
            await page.locator("button.main").click()
            await page.wait_for_url(re.compile(r"/(me|chat)$"))
    state = await context.storage_state()
    await context.close()
    return state


async def sign_in_to_portal(page: Page) -> None:
    """Sign in to the portal as the owner of the sample bot, with a token that the operator rotates."""
    await page.goto("/console/relay")
    await page.locator("[data-row]").first.click()
    await page.locator("form[action$=rotate] button").click()
    await page.locator("button.main.danger").click()
    token = await page.locator(".secret").inner_text()
    await page.goto("/portal/login")
    await page.locator("input[name=token]").fill(token.strip())
    await page.keyboard.press("Enter")
    await page.wait_for_url(re.compile(r"/portal$"))


async def request_chat_link(address: DemoAddress) -> str:
    """The link to the sample visitor's page, requested in the chat."""
    url = f"{address.chat}/chats/{VISITOR_USER}"
    async with httpx2.AsyncClient(trust_env=False) as web:
        await web.post(url, json={"text": "/code"})
        async with web.stream("GET", url) as stream:
            text = ""
            async for chunk in stream.aiter_text():
                text += chunk
                if match := re.search(r"http[^\s\"]*/chat\?code=[\w-]+", text):
                    return match[0]
    raise AssertionError(text)


@asynccontextmanager
async def window(chromium: Browser, address: DemoAddress, viewport: Viewport, state: Any) -> AsyncGenerator[Page]:
    context = await chromium.new_context(
        base_url=address.console,
        locale="ko-KR" if viewport.language == "ko" else "en-GB",
        timezone_id="Asia/Seoul",
        viewport=viewport.size,
        color_scheme=viewport.scheme,
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
