"""Limits at the edge: an error names the field and the limit, and no number or nesting causes a server error."""

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from pabal.api import routes
from pabal.web.request import MAX_QUERY_BYTES, MAX_QUERY_FIELDS
from pabal.web.untyped_json import MAX_JSON_CONTAINERS, MAX_JSON_DEPTH
from security.owner_connection import OwnerConnection
from security.visitors import Visitors
from support.loop_thread import LoopThread, RawRequest
from support.route_examples import example_path, example_struct, example_value, replace_text, text_fields
from support.webhook import WEBHOOK_SECRET

JSON = ("Content-Type", "application/json")
FORM = ("Content-Type", "application/x-www-form-urlencoded")


@pytest.fixture
def served(shared_hub: LoopThread) -> LoopThread:
    """The shared hub, whose rate limits no earlier test has used up."""
    with OwnerConnection(shared_hub, shared_hub.hub.database_urls) as owner:
        owner.reset_limits()
    return shared_hub


@pytest.fixture
def visitors(shared_visitors: Visitors) -> Visitors:
    return shared_visitors


def requests_beyond_a_limit(visitors: Visitors) -> Iterator[tuple[str, int, RawRequest]]:
    """A request for every text field of the route table that is one character too long."""
    for route in routes.ROUTES:
        headers = tuple(visitors.headers_for(route).items())
        path = example_path(route)
        if kind := route.body_type:
            for field, limit in bounded_fields(kind):
                value = replace_text(example_value(field), "a" * (limit + 1))
                body = json.dumps(example_struct(kind) | {field: value}).encode()
                yield field, limit, RawRequest(route.method, path, (*headers, JSON), body)
        if kind := route.query_type:
            for field, limit in bounded_fields(kind):
                yield field, limit, RawRequest(route.method, f"{path}?{field}={'a' * (limit + 1)}", headers)
        if kind := route.form_type:
            for field, limit in bounded_fields(kind):
                fields = example_struct(kind) | {field: "a" * (limit + 1)}
                body = "&".join(f"{name}={value}" for name, value in fields.items()).encode()
                yield field, limit, RawRequest(route.method, path, (*headers, FORM), body)


def bounded_fields(kind: Any) -> Iterator[tuple[str, int]]:
    """The text fields with a limit, each with its highest: a union may have several."""
    limits: dict[str, int] = {}
    for field, limit in text_fields(kind):
        limits[field] = max(limit or 0, limits.get(field, 0))
    return ((field, limit) for field, limit in limits.items() if limit)


def test_an_error_names_the_field_and_the_limit(served: LoopThread, visitors: Visitors) -> None:
    cases = [*requests_beyond_a_limit(visitors)]
    wrong = {}
    for field, limit, request in cases:
        status, response = served.send(request)
        detail = response.partition(b"\r\n\r\n")[2].decode()
        if status != 400 or field not in detail or str(limit) not in detail:
            wrong[f"{request.method} {request.target[:60]}: {field} > {limit}"] = (status, detail[:300])

    assert len(cases) > 50
    assert wrong == {}


def payload_requests(document: bytes, visitors: Visitors) -> dict[str, RawRequest]:
    """A request for every field that takes JSON of any shape."""
    token = (*visitors.token.items(), JSON)
    relay = (*visitors.relay.bearer.items(), JSON)
    webhook = (JSON, ("X-Pabal-Secret", WEBHOOK_SECRET.get_secret_value()))
    event = b'{"event_type":"order.paid","payload":%s}' % document
    recipient = b'"recipient_type":"user_dm","recipient_id":"1","template_key":"payment.succeeded"'
    notification = b'{%s,"payload":%s}' % (recipient, document)
    reply = b'{"messageId":"x","response":%s}' % document
    message = b'{"userRequest":{"user":{"id":"mina"},"utterance":"hi"},"more":%s}' % document
    return {
        "payload": RawRequest("POST", "/v1/queue/events", token, event),
        "notification": RawRequest("POST", "/v1/notifications", token, notification),
        "metadata": RawRequest("POST", "/v1/pairing/generate", relay, b'{"metadata":%s}' % document),
        "response": RawRequest("POST", "/v1/reply", relay, reply),
        "body": RawRequest("POST", "/kakao/webhook", webhook, message),
    }


def nested(levels: int) -> bytes:
    return b'{"a":' * levels + b"1" + b"}" * levels


def test_json_is_accepted_up_to_a_depth(served: LoopThread, visitors: Visitors) -> None:
    deep, too_deep = nested(MAX_JSON_DEPTH), nested(MAX_JSON_DEPTH + 1)

    details = {name: answer(served, request) for name, request in payload_requests(too_deep, visitors).items()}
    expected = f"is nested more than {MAX_JSON_DEPTH} levels deep"
    assert {name: result for name, result in details.items() if result[0] != 400 or expected not in result[1]} == {}
    deep_event = payload_requests(deep, visitors)["payload"]
    assert answer(served, deep_event)[0] == 202


def answer(served: LoopThread, request: RawRequest) -> tuple[int, str]:
    status, response = served.send(request)
    return status, response.partition(b"\r\n\r\n")[2].decode()


def test_the_number_of_lists_and_objects_is_limited(served: LoopThread, visitors: Visitors) -> None:
    lists = b'{"a":[' + b",".join([b"[]"] * MAX_JSON_CONTAINERS) + b"]}"
    brackets_in_a_text = b'{"a":"' + b'[\\"' * (MAX_JSON_CONTAINERS + 1) + b'"}'

    status, text = answer(served, payload_requests(lists, visitors)["payload"])
    assert (status, f"more than {MAX_JSON_CONTAINERS} lists" in text) == (400, True)
    assert answer(served, payload_requests(brackets_in_a_text, visitors)["payload"])[0] == 202


NUMBERS = {
    "4,300 digits": b"9" * 4_300,
    "4,301 digits": b"9" * 4_301,
    "100,000 digits": b"9" * 100_000,
    "a negative number": b"-" + b"9" * 100_000,
    "a large exponent": b"1e400",
    "a huge exponent": b"1e999999999",
    "an exponent of PostgreSQL's limit": b"1e131072",
    "a small exponent": b"1e-400",
    "a scale beyond PostgreSQL's": b"1e-20000",
    "a tiny exponent": b"1e-999999999",
    "many zeros": b"0." + b"0" * 20_000 + b"1",
    "a long fraction": b"0." + b"9" * 100_000,
    "a long mantissa": b"9" * 300 + b"." + b"9" * 100_000 + b"e-5",
    "minus zero": b"-0.0",
}


@pytest.mark.parametrize("name", NUMBERS)
def test_no_number_causes_a_server_error(served: LoopThread, visitors: Visitors, name: str) -> None:
    document = b'{"a":%s}' % NUMBERS[name]

    results = {field: answer(served, request) for field, request in payload_requests(document, visitors).items()}

    assert {field: result for field, result in results.items() if result[0] >= 500} == {}
    listed = answer(served, RawRequest("GET", "/v1/queue/events", tuple(visitors.token.items())))
    assert listed[0] == 200


@pytest.mark.parametrize("digits", [20, 4_300, 5_000])
def test_a_long_number_in_a_query_is_rejected(served: LoopThread, visitors: Visitors, digits: int) -> None:
    targets = (f"/v1/queue/events?limit={'9' * digits}", f"/v1/toasts/stream?after={'9' * digits}")
    for target, headers in zip(targets, (visitors.token, visitors.person), strict=True):
        assert answer(served, RawRequest("GET", target, tuple(headers.items())))[0] == 400


def test_a_long_query_string_is_rejected(served: LoopThread, visitors: Visitors) -> None:
    token = tuple(visitors.token.items())
    long = RawRequest("GET", f"/v1/queue/events?type={'%61' * (MAX_QUERY_BYTES // 3)}", token)
    many = RawRequest("GET", "/v1/queue/events?" + "&".join(f"a{n}=1" for n in range(MAX_QUERY_FIELDS + 1)), token)

    assert answer(served, long)[1].count(f"query: is longer than {MAX_QUERY_BYTES} bytes") == 1
    assert answer(served, many)[1].count(f"query: has more than {MAX_QUERY_FIELDS} parameters") == 1


def test_a_long_authorization_header_is_no_credential(served: LoopThread) -> None:
    for scheme, target in (("Bearer", "/v1/queue/events"), ("Bearer", "/v1/messages"), ("Bearer", "/v1/toasts")):
        status, text = answer(served, RawRequest("GET", target, (("Authorization", f"{scheme} {'a' * 5_000}"),)))
        assert (status, "longer than 4096" in text) == (401, True)


PAGE_LIMITS = {
    "/console/events?type={}": (1100, "type"),
    "/console/dead/letters?signature={}": (1100, "signature"),
    "/console/audit?actor={}": (1100, "actor"),
    "/console/trace?id={}": (1100, "id"),
    "/console/events?cursor={}": (8000, "cursor"),
    "/portal/messages?status={}": (1100, "status"),
    "/me?token={}": (1100, "token"),
    "/chat?code={}": (1100, "code"),
}


@pytest.mark.parametrize("target", PAGE_LIMITS)
def test_a_page_names_a_parameter_that_is_too_long(served: LoopThread, visitors: Visitors, target: str) -> None:
    limit, name = PAGE_LIMITS[target]
    cookie = (("Cookie", visitors.cookie_header), ("Accept-Language", "en"))

    status, page = answer(served, RawRequest("GET", target.format("a" * (limit + 1)), cookie))
    assert (status, f"{name}: is longer than {limit} characters" in page) == (400, True)


def test_a_page_names_a_query_or_form_that_is_too_large(served: LoopThread, visitors: Visitors) -> None:
    cookie = (("Cookie", visitors.cookie_header), FORM, ("Origin", served.origin), ("Host", served.origin[7:]))
    many_fields = f"csrf_token={visitors.csrf_for('/console')}" + "&letter=1" * 600
    long_field = f"csrf_token={visitors.csrf_for('/console')}&note={'a' * 8_001}"

    _, page = answer(served, RawRequest("GET", "/console/events?type=" + quote("가" * 1000), cookie))
    assert f"query: is longer than {MAX_QUERY_BYTES} bytes" in page
    status, page = answer(served, RawRequest("POST", "/console/dead/replay", cookie, many_fields.encode()))
    assert (status, "form: has more than 500 fields" in page) == (400, True)
    status, page = answer(served, RawRequest("POST", "/console/dead/replay", cookie, long_field.encode()))
    assert (status, "note: is longer than 8000 characters" in page) == (400, True)
