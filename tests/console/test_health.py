"""The health page: findings of the doctor and settings, without secrets."""

import asyncio
import re
from collections.abc import AsyncGenerator
from typing import Any

import httpx2
import pytest

from pabal.console import health
from pabal.core.finding import Finding, FindingLevel
from pabal.doctor import settings_checks
from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.settings import Settings, variable_name
from support.clusters import Connection
from support.operator import HOSTILE, SignedInOperator, is_escaped
from support.server import serve_hub

pytestmark = pytest.mark.anyio

SECRETS = {"webhook_secret": "hush-the-webhook", "admin_password": "hush-the-admin", "discord_token": "hush-the-bot"}


@pytest.fixture
async def hub(settings: Settings, database_urls: DatabaseUrls) -> AsyncGenerator[Hub]:
    values: dict[str, Any] = {"data_dir": settings.data_dir, "waiting_text": HOSTILE, "keep_events": "7d", **SECRETS}
    async with open_hub(Settings(_env_file=None, **values), database_urls) as opened:  # pyright: ignore[reportCallIssue]
        yield opened


def row(page: httpx2.Response, name: str) -> str:
    """Return the text of the table row that contains a cell with this name."""
    match = re.search(rf"<tr>(?:(?!</tr>).)*>{re.escape(name)}<.*?</tr>", page.text, re.DOTALL)
    assert match, name
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", match[0])).strip()


async def test_findings_are_shown_with_advice(
    viewer: SignedInOperator, owner: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    await owner.execute("insert into pabal.workers (id, host, pid) values ('host-7', 'host', 7)")
    monkeypatch.setattr(settings_checks, "FIXED_PATCH_RELEASES", {})  # the tests may run on an old interpreter
    english, korean = await viewer.get("/console/health"), await viewer.get("/console/health", "ko")

    assert re.search(r"^OK schema \d+ migrations applied, none pending$", row(english, "schema"))
    assert row(english, "doorbell") == "OK doorbell NOTIFY reaches LISTEN"
    assert row(english, "webhook secret") == "OK webhook secret set"
    assert row(korean, "컨슈머") == "정상 컨슈머 이벤트를 가져가지 않는 컨슈머가 없습니다"
    assert re.search(r"^정상 스키마 마이그레이션 \d+개를 모두 적용했습니다$", row(korean, "스키마"))
    assert row(korean, "LISTEN 연결") == "정상 LISTEN 연결 NOTIFY가 LISTEN에 전달됩니다"
    assert row(korean, "순서 키") == "정상 순서 키 재시도를 기다리는 순서 키가 없습니다"
    assert "모든 점검을 통과했습니다." in korean.text


async def test_a_proxy_that_is_not_trusted_is_a_warning(
    viewer: SignedInOperator, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its clients share one address, so a few wrong secrets would lock all of them out."""
    for header in ("x-forwarded-for", "x-real-ip"):
        await viewer.web.get("/health", headers={header: "192.0.2.1"})

    page = await viewer.get("/console/health")

    assert row(page, "trusted proxies").startswith(
        "Warning trusted proxies 127.0.0.1 forwards requests but is not trusted"
    )
    assert capsys.readouterr().out.count("proxy not trusted") == 1


async def test_a_trusted_proxy_is_no_warning(database_urls: DatabaseUrls, settings: Settings) -> None:
    trusting = settings.model_copy(update={"trusted_proxies": ["127.0.0.1"]})
    async with (
        open_hub(trusting, database_urls) as hub,
        serve_hub(hub) as address,
        httpx2.AsyncClient(base_url=address) as web,
    ):
        await web.get("/health", headers={"x-forwarded-for": "192.0.2.1"})

        assert hub.untrusted_proxies.peer is None


@pytest.mark.parametrize(
    ("level", "summary"),
    [(FindingLevel.WARNING, "Some checks need attention."), (FindingLevel.BAD, "Some checks failed.")],
)
async def test_the_worst_level_is_the_summary_and_findings_are_escaped(
    viewer: SignedInOperator, monkeypatch: pytest.MonkeyPatch, level: FindingLevel, summary: str
) -> None:
    async def run_test_checks(*_: object) -> list[Finding]:
        return [Finding(FindingLevel.GOOD, "disk", "there"), Finding(level, HOSTILE, HOSTILE, HOSTILE)]

    monkeypatch.setattr(health, "run_checks", run_test_checks)
    page = await viewer.get("/console/health")

    assert summary in page.text
    assert is_escaped(page)
    assert page.text.count("&lt;script&gt;alert(1)") == 4  # three in the finding, one in the settings


async def test_the_report_is_cached_between_requests(viewer: SignedInOperator, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, release = 0, asyncio.Event()

    async def run_test_checks(*_: object) -> list[Finding]:
        nonlocal calls
        calls += 1
        await release.wait()
        return [Finding(FindingLevel.GOOD, "disk", f"visit {calls}")]

    monkeypatch.setattr(health, "run_checks", run_test_checks)
    requests = [asyncio.create_task(viewer.get("/console/health")) for _ in range(3)]
    release.set()
    pages = await asyncio.gather(*requests)
    assert [row(page, "disk") for page in pages] == ["OK disk visit 1"] * 3

    monkeypatch.setattr(health, "REPORT_MAX_AGE", 0.0)
    assert row(await viewer.get("/console/health"), "disk") == "OK disk visit 2"


async def test_every_setting_is_listed_and_secrets_are_redacted(hub: Hub, viewer: SignedInOperator) -> None:
    page = await viewer.get("/console/health")

    for name in Settings.model_fields:
        assert variable_name(name) in page.text
    assert "hush" not in page.text
    assert hub.database_urls.main not in page.text
    assert row(page, "PABAL_WEBHOOK_SECRET").startswith("PABAL_WEBHOOK_SECRET *** ")
    assert row(page, "PABAL_KEEP_EVENTS").startswith("PABAL_KEEP_EVENTS 7d ")
    assert row(page, "PABAL_PUBLIC_URL").startswith("PABAL_PUBLIC_URL not set ")
    changed, untouched = page.text.split("settings at their defaults")
    assert "PABAL_KEEP_EVENTS" in changed
    assert "PABAL_KEEP_MESSAGES" in untouched
    assert "&lt;script&gt;alert(1)" in row(page, "PABAL_WAITING_TEXT")
    assert is_escaped(page)


async def test_the_page_requires_a_sign_in(web: httpx2.AsyncClient) -> None:
    response = await web.get("/console/health", follow_redirects=False)

    assert (response.status_code, response.headers["location"]) == (303, "/console/login")
