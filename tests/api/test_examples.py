"""Every example of the API reference runs against a hub and gets the documented status."""

from collections.abc import AsyncGenerator
from typing import Any
from uuid import UUID

import httpx2
import pytest

from pabal.api import routes
from pabal.hub import Hub
from pabal.settings import Settings
from pabal.tokens.permission import Permission
from pabal.web.reference.openapi import build_openapi
from support.api_examples import ExampleHub, run_curl, run_python
from support.failed_events import EventQueue
from support.fake_kakao import run_fake_kakao
from support.inbox import Inbox
from support.notifications import register_builtin_templates
from support.oauth_client import register_oauth_service
from support.receiver import run_receiver
from support.relay_rows import Chat

pytestmark = pytest.mark.anyio

REMOVE_RULES = "delete from notification.rules"
REMOVE_SUBSCRIPTIONS = "delete from pabal.subscriptions"
REMOVE_SERVICES = """
update public.services set is_active = false, disabled_at = now(), removed_at = now() where name = 'warehouse'
"""
REMOVE_OPERATORS = "delete from pabal.operators"


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"callback_allow": ["http://127.0.0.1"]})


@pytest.fixture
async def example_hub(
    hub: Hub, web: httpx2.AsyncClient, event_queue: EventQueue, inbox: Inbox
) -> AsyncGenerator[ExampleHub]:
    await register_builtin_templates(hub)
    shop = await register_oauth_service(hub, web, "shop", *Permission)
    await register_oauth_service(hub, web, "billing", "events:consume")
    user: UUID = await inbox.db.fetchval("insert into identity.users default values returning id")
    owner = await Chat(inbox.db).owner()
    async with run_fake_kakao() as kakao, run_receiver() as receiver:
        yield ExampleHub(hub, web, shop, owner, user, event_queue, inbox, kakao, receiver)


async def test_every_example_gets_the_documented_status(
    example_hub: ExampleHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    examples = [*documented_examples()]
    wrong: list[str] = []
    for name, permission, label, source, documented in examples:
        await example_hub.inbox.db.execute(REMOVE_RULES)
        await example_hub.inbox.db.execute(REMOVE_SUBSCRIPTIONS)
        await example_hub.inbox.db.execute(REMOVE_SERVICES)
        await example_hub.inbox.db.execute(REMOVE_OPERATORS)
        variables = await example_hub.variables(source, permission)
        if label == "curl":
            status = await run_curl(example_hub.web, source, variables)
        else:
            for variable, value in variables.items():
                monkeypatch.setenv(variable, value)
            try:
                status = await run_python(source)
            except Exception as error:  # noqa: BLE001 any error of an example is a finding
                wrong.append(f"{name} {label}: {error!r}")
                continue
        if status not in {documented, None}:
            wrong.append(f"{name} {label}: {status} instead of {documented}")

    assert len(examples) == 2 * len(routes.ROUTES)
    assert not wrong, "\n".join(wrong)


def documented_examples() -> list[tuple[str, str, str, str, int]]:
    """Every example: the endpoint, its permission, the kind of example, its text, and the status of success."""
    return [
        (f"{method.upper()} {path}", first_permission(operation), sample["label"], sample["source"], status)
        for path, methods in build_openapi(routes.ROUTES)["paths"].items()
        for method, operation in methods.items()
        for status in [int(next(iter(operation["responses"])))]
        for sample in operation["x-codeSamples"]
    ]


def first_permission(operation: dict[str, Any]) -> str:
    scopes = [scope for option in operation.get("security", []) for scope in option.get("token", [])]
    return scopes[0] if scopes else ""
