"""The bridge between cells: anyone who reaches the entry can send it a request."""

import importlib.util
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx2
import pytest

pytestmark = pytest.mark.anyio

BRIDGE = Path(__file__).parents[2] / "deploy" / "ha" / "cells" / "bridge.py"


@pytest.fixture
def bridge(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("BRIDGE_WEBHOOK_SECRETS", "whsec_dGVzdA==")
    spec = importlib.util.spec_from_file_location("cell_bridge", BRIDGE)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def test_a_body_larger_than_any_push_is_not_read_to_its_end(bridge: Any) -> None:
    sent = 0

    async def endless_body() -> AsyncGenerator[bytes]:
        nonlocal sent
        for _ in range(64):
            sent += 65_536
            yield bytes(65_536)

    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=bridge.app), base_url="http://cell") as web:
        large = await web.post("/bridge", content=endless_body())
        unsigned = await web.post("/bridge", content=b"{}")

    assert (large.status_code, unsigned.status_code) == (413, 401)
    assert sent <= bridge.MAX_BODY_BYTES + 65_536
