"""The examples of docs/sdk.md run."""

import ast
import inspect
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from client.connections import HubAddress
from conftest import connection, execute
from pabal.events.subscriptions import new_webhook_secret
from pabal.hub import DatabaseUrls
from pabal_client import App

pytestmark = pytest.mark.anyio

SDK = Path(__file__).parents[2] / "docs" / "sdk.md"
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


async def run(block: str, names: dict[str, Any]) -> None:
    """Run a block as a notebook would: top-level await works, and names persist."""
    code = compile(block, str(SDK), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    result: Any = eval(code, names)
    if inspect.isawaitable(result):
        await result


async def test_every_example_runs(
    database_urls: DatabaseUrls, shop: HubAddress, billing: HubAddress, capsys: pytest.CaptureFixture[str]
) -> None:
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
    assert len(blocks) == 8
    assert states == {"completed": 104, "failed": 1, "pending": 1}
    assert [line for text in outputs for line in text.splitlines() if line in {"pending", "401", "event_type"}] == [
        "pending",
        "401",
        "event_type",
    ]
    assert isinstance(names["app"], App)
    assert [handler.event_types for handler in names["app"].handlers] == [("order.*",)]
