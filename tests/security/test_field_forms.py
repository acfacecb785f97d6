"""A route accepts no value that a CHECK of its table refuses.

A value that passes the route and fails in the table costs more than its own request: published events of many callers
share one statement, and a batch that the table refuses is split until the value is alone.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import httpx2
import msgspec
import pytest

from pabal.api.events import EventBody, EventPriority, EventText, ServiceName
from pabal.api.notifications import NotificationBody
from pabal.api.preferences import Locale
from pabal.api.rules import EventPattern, ExpirySeconds, PayloadPathText, PayloadPathTexts, RuleChannels
from pabal.api.subscriptions import EventTypePatterns, PushTimeoutSeconds, PushUrl, RetrySchedule
from pabal.core.errors import Invalid
from pabal.core.event_types import matches_event_pattern
from pabal.events.publish.publish import EventDraft, PublishResult, has_unusual_numbers, publish_events
from pabal.events.subscriptions import OnBlocked
from pabal.events.types import EventType
from pabal.hub import Hub
from pabal.notifications.states import RecipientType
from pabal.queue.batcher import Batcher
from pabal.tokens.permission import PERMISSION_NAMES
from pabal.tokens.services import SERVICE_NAME, ServiceRights
from support.clusters import Connection
from support.event_api import connect_service
from support.server import serve_hub

pytestmark = pytest.mark.anyio

TABLES = (
    "public.event_queue",
    "public.services",
    "pabal.subscriptions",
    "notification.requests",
    "notification.rules",
    "notification.people",
)
TEXTS = (
    *(
        "order.paid",
        "order",
        "a.b.c",
        "a_1.b_2",
        "0",
        "_",
        "ab",
        "ko",
        "en-US",
        "shop",
        "user_dm",
        "https://a.example/",
    ),
    *("", " ", ".", "..", "a.", ".a", "a..b", "Order.paid", "order-paid", "order paid", "order/paid", "a%", "a\\b"),
    *(
        "order.paid\n",
        "\norder.paid",
        "order\n.paid",
        "order.paid\r\n",
        "order.paid ",
        "order.paid\t",
        "ko\n",
        "shop\n",
    ),
    *(
        "order.٣",
        "order.३",
        "order.\uff11",
        "order.\uff41",
        "주문.결제",
        "order.é",
        "ordér",
        "İ",
        "\u0131",
        "\u017f",
        "\u212a",
    ),
    *("*", "order.*", "*.paid", "o*r", "**", "*\n", "a.*.b", "%", "?"),
    *("a" * 127, "a" * 128, "a" * 129, "a." * 63 + "ab", "a." * 64 + "a", "*" * 128, "*" * 129),
    *("a" * 62, "a" * 63, "a" * 64, "a" * 254, "a" * 255, "a" * 256, "가" * 255, "가" * 256, "😀" * 255, "😀" * 256),
    *("a" * 2048, "a" * 2049, "1abc", "a", "A", "ko-kr", "kor", "KO", "ko-KRW", "\x7f", "\x85", "a\x85", "a\u2028"),
)
NUMBERS = (-(2**31), -1, 0, 1, 2, 5, 7, 9, 10, 11, 15, 59, 60, 61, 99, 100, 101, 2**31 - 1)
LISTS = (
    [],
    *([text] for text in TEXTS),
    *([f"order.n{number}" for number in range(count)] for count in (2, 3, 4, 20, 21, 49, 50, 51)),
    ["order.paid", "order.paid\n"],
    ["user_dm", "guild_audit_channel", "dashboard_toast"],
)
MODES = (*TEXTS, "hold", "dead_letter")
SCHEDULES = ([], *([number] for number in (*NUMBERS, 86_400, 86_401)), [1] * 20, [1] * 21, [5, 0], [5, 86_401])
OBJECTS = ({}, {"a": 1}, {"a": {"b": [1, None]}}, [], [{}], "text", 1, None, True)


def by_type(kind: Any) -> Callable[[Any], bool]:
    """Whether a value of a JSON body converts to this type."""

    def accepts(value: Any) -> bool:
        try:
            msgspec.json.decode(msgspec.json.encode(value), type=kind)
        except msgspec.ValidationError:
            return False
        return True

    return accepts


def by_rights(field: str) -> Callable[[Any], bool]:
    def accepts(value: Any) -> bool:
        try:
            ServiceRights(**{"permissions": ["read"], field: value}).columns()
        except Invalid:
            return False
        return True

    return accepts


def is_object(value: Any) -> bool:
    """What the routes with a raw payload check."""
    return msgspec.json.encode(value).startswith(b"{")


def field_type(body: type[msgspec.Struct], name: str) -> Any:
    return next(field.type for field in msgspec.structs.fields(body) if field.name == name)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A CHECK about one column, and what decides about the field of the request."""

    column: str
    column_type: str
    accepts: Callable[[Any], bool]
    values: Sequence[Any]
    is_exact: bool = False
    """Whether the route also accepts everything that the table accepts."""


COMPARED = {
    "event_type_form": Comparison("event_type", "text", by_type(EventType), TEXTS, is_exact=True),
    "event_key_form": Comparison("idempotency_key", "text", by_type(EventText), TEXTS, is_exact=True),
    "valid_priority": Comparison("priority", "integer", by_type(EventPriority), NUMBERS, is_exact=True),
    "valid_max_retries": Comparison("max_retries", "integer", by_type(field_type(EventBody, "max_retries")), NUMBERS),
    "event_payload_is_object": Comparison("payload", "jsonb", is_object, OBJECTS, is_exact=True),
    "service_name_form": Comparison("name", "text", by_type(ServiceName), TEXTS, is_exact=True),
    "service_permissions_known": Comparison(
        "permissions", "jsonb", by_rights("permissions"), [[name] for name in (*PERMISSION_NAMES, *TEXTS)]
    ),
    "service_may_publish_form": Comparison("may_publish", "text[]", by_rights("may_publish"), LISTS[1:]),
    "service_may_subscribe_form": Comparison("may_subscribe", "text[]", by_rights("may_subscribe"), LISTS[1:]),
    "subscription_event_types": Comparison("event_types", "text[]", by_type(EventTypePatterns), LISTS, is_exact=True),
    "subscription_url_length": Comparison("url", "text", by_type(PushUrl), TEXTS),
    "subscription_timeout": Comparison(
        "timeout_seconds", "integer", by_type(PushTimeoutSeconds), NUMBERS, is_exact=True
    ),
    "subscription_retry_schedule": Comparison(
        "retry_schedule", "integer[]", by_type(RetrySchedule), SCHEDULES, is_exact=True
    ),
    "subscription_on_blocked": Comparison("on_blocked", "text", by_type(OnBlocked), MODES, is_exact=True),
    "requests_recipient_type_check": Comparison("recipient_type", "text", by_type(RecipientType), TEXTS, is_exact=True),
    "request_recipient_named": Comparison(
        "recipient_id", "text", by_type(field_type(NotificationBody, "recipient_id")), TEXTS
    ),
    "request_locale_form": Comparison("locale", "text", by_type(field_type(NotificationBody, "locale")), TEXTS),
    "request_payload_object": Comparison("payload", "jsonb", is_object, OBJECTS, is_exact=True),
    "person_locale_form": Comparison("locale", "text", by_type(Locale), TEXTS),
    "rule_event_pattern_form": Comparison("event_pattern", "text", by_type(EventPattern), TEXTS),
    "rule_recipients_array": Comparison("recipients", "jsonb", by_type(PayloadPathTexts), (*LISTS, *OBJECTS)),
    "rule_channels_known": Comparison("channels", "text[]", by_type(RuleChannels), LISTS),
    "rule_variables_object": Comparison("variables", "jsonb", by_type(dict[str, PayloadPathText]), OBJECTS),
    "rule_expires_later": Comparison("expires_after", "double precision", by_type(ExpirySeconds), NUMBERS),
}
NOT_FROM_REQUESTS = {
    "valid_status": "set by the engine",
    "valid_retry_count": "set by the engine",
    "event_ended_has_time": "set by triggers",
    "service_disabled_has_time": "set with is_active",
    "service_removed_is_disabled": "set with is_active",
    "subscription_mode": "chosen from the URL",
    "subscription_push_has_url": "chosen from the URL",
    "subscription_disabled_has_reason": "set together",
    "subscription_previous_secret_has_end": "set together",
    "requests_state_check": "set by the engine",
    "request_attempts": "set by the engine",
    "request_sent_has_time": "set by the engine",
    "request_ended_has_time": "set by triggers",
    "request_failed_has_error": "set by the engine",
    "request_ended_has_reason": "set by the engine",
    "request_lease_has_end": "set by the engine",
    "request_lease_is_pending": "set by the engine",
    "request_priority": "from the template",
    "request_decision_array": "built by the decision",
    "request_key_has_source": "the source is the caller",
    "person_discord_id_named": "the id is part of the path, which is not empty",
}


class RecordingBatcher(Batcher[EventDraft, PublishResult]):
    """The batcher of a hub that also keeps the drafts that share its statements."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.drafts: list[EventDraft] = []

    async def put(self, item: EventDraft) -> PublishResult:
        self.drafts.append(item)
        return await super().put(item)


async def read_checks(owner: Connection) -> dict[str, str]:
    rows = await owner.fetch(
        """
        select conname as name, pg_get_expr(conbin, conrelid) as expression from pg_constraint
        where contype = 'c' and conrelid = any($1::text[]::regclass[])
        """,
        TABLES,
    )
    return {row["name"]: row["expression"] for row in rows}


async def table_accepts(owner: Connection, expression: str, comparison: Comparison, value: Any) -> bool:
    """Evaluate a CHECK, which passes if it is true or null."""
    parameter = value if comparison.column_type != "jsonb" else msgspec.json.encode(value).decode()
    cast = "$1::text::jsonb" if comparison.column_type == "jsonb" else f"$1::{comparison.column_type}"
    if comparison.column == "expires_after":
        cast = "make_interval(secs => $1::double precision)"
    question = f"select ({expression}) is not false from (select {cast} as {comparison.column}) as row"
    return await owner.fetchval(question, parameter)


async def test_every_check_is_compared_or_not_reached_by_requests(owner: Connection) -> None:
    assert (await read_checks(owner)).keys() == COMPARED.keys() | NOT_FROM_REQUESTS.keys()
    assert not COMPARED.keys() & NOT_FROM_REQUESTS.keys()


@pytest.mark.parametrize("name", COMPARED)
async def test_the_table_accepts_what_the_route_accepts(owner: Connection, name: str) -> None:
    comparison, expression = COMPARED[name], (await read_checks(owner))[name]
    accepted: list[Any] = []
    for value in comparison.values:
        by_table = await table_accepts(owner, expression, comparison, value)
        by_route = comparison.accepts(value)
        assert by_table or not by_route, f"the route accepts {value!r}, the table does not"
        assert by_route or not (by_table and comparison.is_exact), f"the table accepts {value!r}, the route does not"
        accepted += [value] if by_route else []

    assert accepted, "the corpus has no valid value"


def test_the_name_of_a_service_has_one_form() -> None:
    is_service_name = by_type(ServiceName)
    for text in TEXTS:
        assert is_service_name(text) == (SERVICE_NAME.fullmatch(text) is not None), text


@pytest.mark.parametrize(
    "payload",
    ['{"n": 1e-99999}', '{"n": 0.' + "1" * 20_000 + "}", '{"n": 1' + "0" * 15_999 + ".5" + "0" * 8_000 + "e-999}"],
)
async def test_a_number_that_the_database_refuses_shares_no_statement(hub: Hub, payload: str) -> None:
    batcher = RecordingBatcher(hub.db, publish_events)
    async with (
        serve_hub(replace(hub, publisher=batcher)) as address,
        httpx2.AsyncClient(base_url=address, timeout=30) as web,
    ):
        shop = await connect_service(hub, web, "shop")
        body = f'{{"event_type": "order.refused", "payload": {payload}}}'
        response = await web.post("/v1/queue/events", headers=shop.headers, content=body)
        await shop.publish("order.paid", payload={"n": 1e-300})

    assert response.status_code == 400
    assert [item["field"] for item in response.json()["mistakes"]] == ["payload"]
    assert [draft.event_type for draft in batcher.drafts] == ["order.paid"]


async def test_numbers_that_are_not_unusual_can_be_stored(owner: Connection) -> None:
    """The largest numbers that share a statement with events of others."""
    for number in ("1" * 7_999, "0." + "1" * 7_900, "1" * 3_000 + "." + "1" * 4_000 + "e-999", "-1e-999", "1e-307"):
        assert not has_unusual_numbers(f'{{"n": {number}}}'.encode())
        assert await owner.fetchval("select jsonb_typeof($1::text::jsonb)", number) == "number"


@pytest.mark.parametrize(
    "payload", ['{"n":1e-99999}', '{"n": -1.5E+0010}', '{"n": [0,2e4000]}', '{"n":\n\t1e2000}', '{"n":[12e9999]}']
)
def test_numbers_with_a_large_exponent_are_unusual(payload: str) -> None:
    assert has_unusual_numbers(payload.encode())


def test_ids_do_not_look_like_unusual_numbers() -> None:
    """An event with such an id would be published alone instead of together with those of other callers."""
    ids = ["3e12345f-0000-4000-8000-1e9999999999", "1e99999", "e1234", "0x1e1234"]
    payload = {"id": ids[0], "list": ids, **dict.fromkeys(ids, 1)}
    assert not has_unusual_numbers(msgspec.json.format(msgspec.json.encode(payload)))
    assert not has_unusual_numbers(msgspec.json.encode(payload))


def test_the_search_for_unusual_numbers_and_the_match_are_linear() -> None:
    started = time.thread_time()
    has_unusual_numbers(b":1" * 131_072 + b"e1234")
    has_unusual_numbers(b":" + b"1" * 262_144 + b"-e1234")
    has_unusual_numbers(b" " * 262_144 + b"e1234")
    has_unusual_numbers(b"e" * 262_144)
    has_unusual_numbers(b",".join([b"1" * 7_990] * 32))
    matches_event_pattern("a" * 128, "*a" * 60 + "*b")
    assert time.thread_time() - started < 0.5
