"""Services, subscriptions and operators are added, changed and removed in the console."""

import re
from collections.abc import AsyncGenerator
from html import unescape

import pytest

from pabal.events.events import EventAccess
from pabal.events.subscriptions import find_subscription
from pabal.hub import Hub
from pabal.operators.operators import Role, find_operator_credentials, list_operators
from pabal.operators.password import verify_password
from pabal.settings import Settings
from pabal.tokens.services import find_service
from support.clusters import Connection
from support.operator import SignedInOperator, sign_in
from support.receiver import Receiver, respond_with, run_receiver
from support.subscriptions import subscribe
from tokens.token_operations import add_shop

pytestmark = pytest.mark.anyio

SHOP = "/console/services/shop"
ROTATION_FORM = re.compile(r'/rotate">.*?name="newest" value="([^"]*)"', re.DOTALL)
WEBHOOK_SECRET = re.compile(r"whsec_[\w+/=]{44}")
PASSWORD = re.compile(r"<code>([\w-]{20})</code>")


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"callback_allow": ["http://127.0.0.1"]})


@pytest.fixture
async def receiver() -> AsyncGenerator[Receiver]:
    async with run_receiver() as receiver:
        yield receiver


async def actions_of(owner: Connection) -> list[str]:
    query = "select action from pabal.audit_log where actor = 'operator:the-admin' and id > 0 order by id"
    return [row["action"] for row in await owner.fetch(query) if row["action"] != "operator.signed_in"]


async def test_a_service_is_described_and_removed(hub: Hub, admin: SignedInOperator, owner: Connection) -> None:
    await admin.post(
        "/console/services", name="shop", description="Shop", permission=["write"], may_publish="order.* refund.*"
    )
    async with hub.autocommit() as tx:
        added = await find_service(tx, "shop")
    changed = await admin.post(
        f"{SHOP}/rights", permission=["write"], may_publish="order.*", may_subscribe="", description="The web shop"
    )
    same = await admin.post(
        f"{SHOP}/rights", permission=["write"], may_publish="order.*", may_subscribe="", description="The web shop"
    )
    async with hub.autocommit() as tx:
        described = await find_service(tx, "shop")
    question = await admin.post(f"{SHOP}/remove")
    removed = await admin.post(f"{SHOP}/remove", count="1")

    assert added.may_publish == ["order.*", "refund.*"]
    assert (changed.status_code, same.status_code) == (303, 303)
    assert (described.description, described.may_publish) == ("The web shop", ["order.*"])
    assert "its 1 active secret will be removed" in question.text
    assert (removed.status_code, removed.headers["location"]) == (303, "/console/services")
    assert (await admin.get(SHOP)).status_code == 404
    assert (await actions_of(owner)).count("service.described") == 1
    assert (await actions_of(owner))[-1] == "service.removed"


async def test_a_service_in_use_says_why_it_stays(hub: Hub, admin: SignedInOperator) -> None:
    await add_shop(hub)
    await subscribe(hub, "shop", "order.*")

    refused = await admin.post(f"{SHOP}/remove", count="1")

    assert refused.status_code == 409
    assert "shop cannot be removed, because it has subscriptions. Disable it instead" in refused.text


async def test_a_push_subscription_is_added_changed_and_removed(
    hub: Hub, admin: SignedInOperator, owner: Connection, receiver: Receiver
) -> None:
    await add_shop(hub)
    form = {"event_types": "order.* refund.*", "url": receiver.url, "description": "Invoices", "timeout_seconds": "20"}

    added = await admin.post(f"{SHOP}/subscriptions", **form, retry_schedule="5s, 2m", on_blocked="hold")
    [row] = await owner.fetch("select id, url from pabal.subscriptions where service_name = 'shop'")
    path, access = f"{SHOP}/subscriptions/{row['id']}", EventAccess("shop", all_services=False)
    page = (await admin.get(path)).text
    async with hub.autocommit() as tx:
        first = await find_subscription(tx, row["id"], access)
    changed = await admin.post(
        path,
        event_types="order.paid",
        url=f"{receiver.url}/v2",
        description="",
        timeout_seconds="30",
        retry_schedule="",
    )
    async with hub.autocommit() as tx:
        second = await find_subscription(tx, row["id"], access)
    delivered = await admin.post(f"{path}/test")
    receiver.responder = respond_with(500, b"oh no")
    failed = await admin.post(f"{path}/test")
    rotated = await admin.post(f"{path}/rotate", newest="none")
    question = await admin.post(f"{path}/remove")
    removed = await admin.post(f"{path}/remove", count="1")

    assert WEBHOOK_SECRET.search(added.text)
    assert "5s, 2m" in page
    assert (first.event_types, first.retry_schedule, first.on_blocked) == (["order.*", "refund.*"], [5, 120], "hold")
    assert (first.timeout_seconds, first.description) == (20, "Invoices")
    assert changed.headers["location"] == path
    assert (second.event_types, second.url) == (["order.paid"], f"{receiver.url}/v2")
    assert (second.retry_schedule, second.on_blocked, second.description) == (None, "hold", None)
    assert "The receiver accepted the test event." in delivered.text
    assert "HTTP 500: oh no" in failed.text
    assert WEBHOOK_SECRET.search(rotated.text)
    assert "will be removed" in question.text
    assert removed.headers["location"] == SHOP
    assert await actions_of(owner) == [
        f"subscription.{action}" for action in ("added", "changed", "secret_rotated", "removed")
    ]


async def test_a_rotation_that_is_sent_twice_keeps_the_secret_of_the_receiver(
    hub: Hub, admin: SignedInOperator, owner: Connection, receiver: Receiver
) -> None:
    await add_shop(hub)
    await admin.post(f"{SHOP}/subscriptions", event_types="order.*", url=receiver.url, timeout_seconds="20")
    path = f"{SHOP}/subscriptions/{await owner.fetchval('select id from pabal.subscriptions')}"
    query = "select previous_secret from pabal.subscriptions"
    [newest] = ROTATION_FORM.findall((await admin.get(path)).text)

    await admin.post(f"{path}/rotate", newest=newest)
    previous = await owner.fetchval(query)
    again = await admin.post(f"{path}/rotate", newest=newest)

    assert (again.status_code, again.headers["location"]) == (303, path)
    assert await owner.fetchval(query) == previous
    [renewed] = ROTATION_FORM.findall((await admin.get(path)).text)
    assert WEBHOOK_SECRET.search((await admin.post(f"{path}/rotate", newest=renewed)).text)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"event_types": ""}, "event_types: are 1 to 50 types"),
        ({"event_types": "Order"}, "event_types: are 1 to 50 types"),
        ({"event_types": "order.*", "url": "http://127.0.0.2/"}, "add its origin to PABAL_CALLBACK_ALLOW"),
        ({"event_types": "order.*", "retry_schedule": "soon"}, "retry_schedule: "),
        ({"event_types": "order.*", "timeout_seconds": "-1"}, "timeout_seconds: is 1 to 60"),
        ({"event_types": "order.*", "timeout_seconds": "99"}, "timeout_seconds: is 1 to 60"),
        ({"event_types": "order.*", "on_blocked": "wait"}, "on_blocked: must be one of hold, dead_letter"),
        ({"event_types": "order.*", "description": "a\nb"}, "description: must be one line"),
    ],
)
async def test_a_refused_subscription_names_the_field(
    hub: Hub, admin: SignedInOperator, fields: dict[str, str], text: str
) -> None:
    await add_shop(hub)

    refused = await admin.post(f"{SHOP}/subscriptions", **fields)

    assert refused.status_code == 400
    assert text in refused.text


async def test_a_refused_form_keeps_what_was_typed(hub: Hub, admin: SignedInOperator, receiver: Receiver) -> None:
    await add_shop(hub)
    subscription, _ = await subscribe(hub, "shop", "order.*", url=receiver.url)
    form = {"description": "<mine>", "url": receiver.url + "/new", "timeout_seconds": "7", "on_blocked": "hold"}
    typed = {"event_types": "order.* cart.*", "retry_schedule": "soon"} | form
    rights = {"permission": "events:read", "description": "The <shop>", "may_publish": "Order", "may_subscribe": "a.*"}

    for path, fields in (
        (f"{SHOP}/subscriptions", typed),
        (f"{SHOP}/subscriptions/{subscription.id}", typed),
        (f"{SHOP}/rights", rights),
    ):
        refused = await admin.post(path, **fields)
        shown = refused.text.partition(f'method="post" action="{path}"')[2].partition("</form>")[0]

        assert refused.status_code == 400, path
        assert 'role="alert"' in shown, path
        values = {unescape(value) for value in re.findall(r'<input name="[^>]* value="([^"]*)"', shown)}
        chosen = set(re.findall(r'value="([a-z:_]*)" (?:checked|selected)', shown))
        assert {*fields.values()} <= values | chosen, path
        assert chosen == {*fields.values()} & {"hold", "events:read"}, path
        assert not re.search(r"/rights/|/subscriptions/subscriptions", refused.text), "the forms have their own paths"


async def test_a_subscription_of_another_service_is_not_found(hub: Hub, admin: SignedInOperator) -> None:
    await add_shop(hub)
    subscription, _ = await subscribe(hub, "minu_build", "order.*")

    for action in ("", "/remove", "/rotate", "/test"):
        fields = {"event_types": "order.*", "count": "1"}
        answer = await admin.post(f"{SHOP}/subscriptions/{subscription.id}{action}", **fields)
        assert answer.status_code == 404, action


async def test_operators_are_added_changed_and_removed(hub: Hub, admin: SignedInOperator, owner: Connection) -> None:
    added = await admin.post("/console/operators", name="jun", role="viewer")
    [password] = PASSWORD.findall(added.text)
    async with hub.autocommit() as tx:
        credentials = await find_operator_credentials(tx, "jun")
    again = await admin.post("/console/operators", name="JUN", role="viewer")
    role = await admin.post("/console/operators/jun/role", role="admin")
    question = await admin.post("/console/operators/jun/password")
    reset = await admin.post("/console/operators/jun/password", count="1")
    await admin.post("/console/operators/jun/disable", count="1")
    page = (await admin.get("/console/operators")).text
    last = await admin.post("/console/operators/the-admin/remove", count="1")
    await admin.post("/console/operators/jun/enable")
    await admin.post("/console/operators/jun/remove", count="1")

    assert credentials
    assert await verify_password(password, credentials.password_hash)
    assert (again.status_code, "Operator JUN already exists" in again.text) == (409, True)
    assert role.status_code == 303
    assert "signed out everywhere" in question.text
    assert PASSWORD.search(reset.text)
    assert "Disabled" in page
    assert (last.status_code, "the-admin is the only enabled admin" in last.text) == (409, True)
    async with hub.autocommit() as tx:
        assert [row.name for row in await list_operators(tx)] == ["the-admin"]
    assert await actions_of(owner) == [
        f"operator.{action}"
        for action in ("added", "role_changed", "password_changed", "disabled", "enabled", "removed")
    ]


async def test_a_viewer_reads_and_changes_nothing(hub: Hub, admin: SignedInOperator, viewer: SignedInOperator) -> None:
    await add_shop(hub)
    subscription, _ = await subscribe(hub, "shop", "order.*")
    page = await viewer.get("/console/operators")
    detail = await viewer.get(f"{SHOP}/subscriptions/{subscription.id}")

    assert (page.status_code, detail.status_code) == (200, 200)
    assert "<form" not in page.text.partition("<main")[2]
    assert "<form" not in detail.text.partition("<main")[2]
    for path in ("/console/operators", f"{SHOP}/remove", f"{SHOP}/subscriptions/{subscription.id}/remove"):
        assert (await viewer.post(path, name="jun", role="admin", count="1")).status_code == 403


async def test_the_session_of_a_removed_operator_ends(hub: Hub, admin: SignedInOperator) -> None:
    jun = await sign_in(hub, admin.web, Role.VIEWER, "jun")
    assert (await jun.get("/console/operators")).status_code == 200

    await admin.post("/console/operators/jun/remove", count="1")

    assert (await jun.get("/console/operators")).headers["location"] == "/console/login"
