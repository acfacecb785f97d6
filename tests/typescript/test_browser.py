"""The built package in a page of another origin, in a real browser."""

import socket
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from playwright.async_api import expect
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from pabal.demo.run import listener_url, serve_demo_app
from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.settings import Settings
from support.browser import launch_browser, open_checked_page
from support.inbox import MINA, Inbox, open_inbox
from support.node import CLIENT, compiler_program, run_node
from support.server import serve_hub

pytestmark = [pytest.mark.anyio, pytest.mark.browser]

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>A shop</title><link rel="icon" href="data:,"></head>
<body><button>Read all</button><ol></ol><script type="module">
import {{ Toasts }} from "/dist/index.js";
const getToken = async () => (await (await fetch("/token", {{ method: "POST" }})).json()).token;
const toasts = new Toasts({{ url: "{hub}", getToken }});
const show = (textContent) =>
  document.querySelector("ol").append(Object.assign(document.createElement("li"), {{ textContent }}));
const page = await toasts.list();
show(`${{page.unread}} unread`);
document.querySelector("button").addEventListener("click", async () => show(`${{await toasts.markAllRead()}} marked`));
const stop = new AbortController();
for await (const {{ toast, unread }} of toasts.changes(page.last, stop.signal)) {{
  show(`${{toast.title}} ${{toast.state}} ${{unread}}`);
  if (toast.state === "unseen") await toasts.mark(toast.id, "seen");
  if (toast.state === "read") stop.abort();
}}
show("stopped");
</script></body></html>"""


@pytest.fixture
async def package(tmp_path: Path) -> Path:
    """The build of the package."""
    arguments = ("-p", CLIENT / "tsconfig.build.json", "--outDir", tmp_path / "dist")
    async with run_node(compiler_program(), *arguments) as compiler:
        assert await compiler.end() == (0, [])
    return tmp_path / "dist"


@pytest.fixture
async def shop(
    database_urls: DatabaseUrls, settings: Settings, package: Path
) -> AsyncGenerator[tuple[Hub, Inbox, str]]:
    """A hub that allows the origin of a page, the inbox of its person, and the page's address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        origin = listener_url(listener)
        allowed = settings.model_copy(update={"allowed_origins": [origin]})
        async with (
            open_hub(allowed, database_urls) as hub,
            serve_hub(hub) as hub_url,
            open_inbox(hub, database_urls) as inbox,
        ):

            async def show_page(_request: Request) -> Response:
                return HTMLResponse(PAGE.format(hub=hub_url))

            async def issue_token(_request: Request) -> Response:
                return JSONResponse({"token": await inbox.token(MINA)})

            routes = [
                Route("/", show_page),
                Route("/token", issue_token, methods=["POST"]),
                Mount("/dist", StaticFiles(directory=package)),
            ]
            async with serve_demo_app(Starlette(routes=routes), listener):
                yield hub, inbox, origin


async def test_toasts_are_listed_followed_and_marked_in_a_page(shop: tuple[Hub, Inbox, str]) -> None:
    hub, inbox, origin = shop
    async with launch_browser() as browser, open_checked_page(await browser.new_context(base_url=origin)) as page:
        await page.goto("/")
        lines = page.get_by_role("listitem")
        await expect(lines).to_have_text(["0 unread"])
        await inbox.insert_toast(title="One")
        await expect(lines).to_have_text(["0 unread", "One unseen 1", "One seen 1"])
        hub.toast_streams.close_all()
        await inbox.insert_toast(title="Two")
        await expect(lines).to_have_text(["0 unread", "One unseen 1", "One seen 1", "Two unseen 2", "Two seen 2"])
        await page.get_by_role("button", name="Read all").click()

        await expect(lines.filter(has_text="2 marked")).to_be_visible()
        await expect(lines.filter(has_text="stopped")).to_be_visible()
        assert await inbox.unread() == 0
