"""The examples of docs/sdk.md and of the client's README run."""

import ast
import asyncio
import inspect
import re
from collections import Counter
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from client.connections import HubAddress
from conftest import connection, execute
from pabal.events.subscriptions import new_webhook_secret
from pabal.hub import DatabaseUrls, Hub
from pabal_client import App
from support.notifications import register_builtin_templates

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]
SDK, README = ROOT / "docs" / "sdk.md", ROOT / "clients" / "python" / "README.md"
OUTPUTS = {"pending", "2", "no such customer", "401", "event_type"}
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


async def run(block: str, names: dict[str, Any]) -> None:
    """Run a block as a notebook would: top-level await works, and names persist."""
    code = compile(block, str(SDK), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    result: Any = eval(code, names)
    if inspect.isawaitable(result):
        await result


async def test_every_example_runs(
    hub: Hub, database_urls: DatabaseUrls, shop: HubAddress, billing: HubAddress, capsys: pytest.CaptureFixture[str]
) -> None:
    await register_builtin_templates(hub)
    await execute(
        database_urls.direct or database_urls.main,
        "create table public.orders (id int); grant insert on public.orders to public",
    )
    names: dict[str, Any] = {
        "ADDRESS": shop.url,
        "DATABASE": database_urls.main,
        "SHOP_SECRET": shop.secret,
        "BILLING_SECRET": billing.secret,
        "SECRET": new_webhook_secret(),
        "OLD_SECRET": new_webhook_secret(),
        "PERSON": str(uuid4()),
        "RELAY_TOKEN": "prt_token",
    }
    blocks = PYTHON.findall(SDK.read_text())
    outputs: list[str] = []
    for block in blocks:
        await run(block, names)
        outputs.append(capsys.readouterr().out)
        if "asyncpg.connect" in block:
            await names["connection"].close()

    async with connection(database_urls.main) as database:
        states = Counter(
            row["status"]
            for row in await database.fetch("select status from event_queue where target_service = 'billing'")
        )
    assert len(blocks) == 12
    assert states == {"completed": 104, "pending": 2}, "one event failed and was replayed"
    assert [line for text in outputs for line in text.splitlines() if line in OUTPUTS] == [
        "pending",
        "2",
        "no such customer",
        "401",
        "event_type",
    ]
    assert isinstance(names["app"], App)
    assert [handler.event_types for handler in names["app"].handlers] == [("order.*",)]


async def test_the_examples_of_the_readme_run(
    database_urls: DatabaseUrls, shop: HubAddress, billing: HubAddress, capsys: pytest.CaptureFixture[str]
) -> None:
    """All but its bot, which runs in a process of its own: see test_install.py."""
    names: dict[str, Any] = {
        "ADDRESS": shop.url,
        "DATABASE": database_urls.main,
        "SHOP_SECRET": shop.secret,
        "BILLING_SECRET": billing.secret,
    }
    [_, *blocks] = PYTHON.findall(README.read_text())
    for block in blocks:
        await asyncio.to_thread(exec, compile(block, str(README), "exec"), names)

    async with connection(database_urls.main) as database:
        rows = await database.fetch("select status from event_queue where target_service = 'billing' order by id")
    assert len(blocks) == 3
    assert "pending" in capsys.readouterr().out.splitlines()
    assert [row["status"] for row in rows] == ["pending", "completed"]
