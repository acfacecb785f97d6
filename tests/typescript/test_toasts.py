"""The TypeScript client of a person's toasts."""

from pathlib import Path

import httpx2
import pytest

from pabal.hub import Hub
from support.inbox import MINA, Inbox
from support.node import CLIENT, run_node, write_program
from support.oauth_client import register_oauth_service
from support.wait import wait_until

pytestmark = pytest.mark.anyio

DELETE_FIRST_TOKEN = """
delete from notification.person_tokens
where created_at = (select min(created_at) from notification.person_tokens)
"""


async def test_the_example_follows_and_marks_toasts(hub: Hub, web: httpx2.AsyncClient, inbox: Inbox) -> None:
    service = await register_oauth_service(hub, web, "shop", "people:token")
    await inbox.insert_toast(title="Earlier")
    variables = {"PABAL_URL": str(web.base_url), "PABAL_SERVICE": "shop", "PABAL_SECRET": service.secret}
    async with run_node(CLIENT / "examples" / "toasts.ts", PERSON_ID=MINA, **variables) as process:
        assert await process.line() == "unread 1"
        await inbox.insert_toast(title="New")
        assert await process.line() == "New unseen 2"
        assert await process.line() == "New read 1"
        assert await process.end() == (0, [])


async def test_a_stream_that_ends_is_continued_with_a_new_token(
    hub: Hub, web: httpx2.AsyncClient, inbox: Inbox, tmp_path: Path
) -> None:
    tokens = " ".join([await inbox.token(), await inbox.token()])
    source = """
    const tokens = env.TOKENS.split(" ");
    const toasts = new pabal.Toasts({ url: env.URL, getToken: async () => tokens.shift()! });
    const stop = new AbortController();
    console.log((await toasts.issueTicket()).ticket.slice(0, 4));
    for await (const { toast } of toasts.changes(0, stop.signal)) {
      console.log(toast.title);
      if (toast.title === "Two") stop.abort();
    }
    console.log(tokens.length);
    """
    async with run_node(write_program(tmp_path, source), URL=str(web.base_url), TOKENS=tokens) as process:
        assert await process.line() == "pbt_"
        await inbox.insert_toast(title="One")
        assert await process.line() == "One"
        await inbox.db.execute(DELETE_FIRST_TOKEN)
        hub.toast_streams.close_all()
        await wait_until(lambda: len(hub.toast_streams) == 1)
        await inbox.insert_toast(title="Two")
        assert await process.line() == "Two"
        assert await process.end() == (0, ["0"])
