"""No request keeps the event loop busy for 50 ms, whatever its path, headers, query, form or body contain.

The hub serves all of its clients in one thread: a request that occupies it delays every other one. Each value is as
long as the edge lets through. The time is the CPU time of the loop's thread, which other processes do not change.
"""

import json
from collections.abc import Iterable, Iterator
from urllib.parse import quote

import pytest
from starlette.routing import Mount
from starlette.routing import Route as PageRoute

from pabal.api import routes
from pabal.console.access.csrf import CSRF_FIELD
from pabal.console.routes import console_routes
from pabal.hub import DatabaseUrls, Hub
from pabal.web.route import RequestQuery, Route
from security.owner_connection import OwnerConnection
from security.request_surface import FORM_NAMES, QUERY_NAMES, READ_HEADERS
from security.visitors import Visitors
from support.hostile_input import hostile_documents, hostile_text, hostile_texts
from support.loop_thread import MAX_BLOCK, UNIQUE, LoopThread, RawRequest
from support.route_examples import (
    EXAMPLE_ID,
    example_path,
    example_struct,
    example_value,
    replace_text,
    text_fields,
)
from support.webhook import WEBHOOK_SECRET

pytestmark = pytest.mark.slow

Case = tuple[str, RawRequest]
BODY_BYTES = 1_048_576
"""The default body limit."""
BODY_RESERVE = 1_000
"""Bytes for the other fields."""
HEAD_CHARS = 5_000
"""Characters of a value in the request head: with each one escaped as three bytes, just below the limit of the head."""
FORM_CHARS = 20_000
MESSAGE_CHARS = 19_000
"""Characters of a chat message. KakaoTalk allows 10,000."""
LARGE_VALUES = ("a", "\\", "\u0301\u0323", ".", "9", "[")
"""What fills a field up to the limit of the body. The other values are only as long as the field allows."""
LOOSE_FIELDS = ("payload", "metadata", "response", "events", "variables", "receipts", "message_ids")
JSON = ("Content-Type", "application/json")
WEBHOOK = (JSON, ("X-Pabal-Secret", WEBHOOK_SECRET.get_secret_value()))
FORM = ("Content-Type", "application/x-www-form-urlencoded")
HEADER_TARGETS = (
    "/v1/queue/events",
    "/v1/toasts",
    "/v1/messages",
    "/v1/events",
    "/health",
    "/console",
    "/console/login",
    "/console/static/console.css",
    "/portal",
    "/chat",
    "/me",
    "/nothing",
)
SINGLE_QUERY_NAMES = ("cursor", "id", "payload", "code", "token")
"""Parameters that end a request early or decide on its page, so each is sent alone."""
SERVER_ERROR = 500
SIGN_OUT_ENDS = ("/logout", "/leave")


def assert_quick(served: LoopThread, urls: DatabaseUrls, cases: Iterable[Case]) -> None:
    """Send every request. None may occupy the loop for long, and none may fail with a server error."""
    slow: list[str] = []
    failed: list[str] = []
    sent = 0
    with OwnerConnection(served, urls) as owner:
        for name, request in cases:
            owner.reset_limits()
            seconds, status = served.longest_block(request, owner.reset_limits)
            sent += 1
            if seconds >= MAX_BLOCK:
                slow.append(f"{seconds * 1000:.0f} ms, status {status}: {name}")
            if status >= SERVER_ERROR:
                failed.append(f"status {status}: {name}")
    problems = [*slow, *failed]
    assert not problems, f"{len(problems)} of {sent} requests\n" + "\n".join(problems)
    assert sent


def header_lines(headers: dict[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(headers.items())


def unique_routes() -> list[Route]:
    """One route per handler: aliases run the same code."""
    return [*{route.name: route for route in routes.ROUTES}.values()]


def test_no_path_is_slow(served: LoopThread, visitors: Visitors, database_urls: DatabaseUrls) -> None:
    assert_quick(served, database_urls, path_cases(served.hub, visitors))


def path_cases(hub: Hub, visitors: Visitors) -> Iterator[Case]:
    texts = hostile_texts(HEAD_CHARS)
    for name, text in texts.items():
        yield f"unknown path, {name}", RawRequest("GET", "/" + quote(text, safe="/:.-,=*"))
    for route in unique_routes():
        for parameter in route.path_types:
            for name, text in texts.items():
                target = example_path(route, **{parameter: quote(text, safe="")})
                headers = header_lines(visitors.headers_for(route))
                yield f"{route.name}, {parameter}, {name}", RawRequest(route.method, target, headers)
    for method, path in page_paths(hub):
        if "{" in path:
            for name, text in texts.items():
                yield f"{method} {path}, {name}", page_request(method, fill_path(path, quote(text)), visitors)


def page_paths(hub: Hub) -> Iterator[tuple[str, str]]:
    for route in console_routes(hub):
        match route:
            case PageRoute():
                yield from ((method, route.path) for method in (route.methods or {"GET"}) if method != "HEAD")
            case Mount():
                yield "GET", route.path + "/{path}"
            case _:
                raise TypeError(route)


def fill_path(path: str, value: str) -> str:
    head, brace, rest = path.partition("{")
    if not brace:
        return path
    parameter, _, tail = rest.partition("}")
    return head + (EXAMPLE_ID if parameter.endswith(":uuid") else value) + fill_path(tail, value)


def page_request(method: str, target: str, visitors: Visitors, body: bytes = b"") -> RawRequest:
    """A request of a signed-in browser. Signing out would end the session that the other requests need."""
    headers = [FORM, ("Origin", "http://localhost")]
    if not target.split("?", maxsplit=1)[0].endswith(SIGN_OUT_ENDS):
        headers.append(("Cookie", visitors.cookie_header))
    return RawRequest(method, target, tuple(headers), body)


def test_no_header_is_slow(served: LoopThread, visitors: Visitors, database_urls: DatabaseUrls) -> None:
    assert_quick(served, database_urls, header_cases(visitors))


def header_cases(visitors: Visitors) -> Iterator[Case]:
    texts = hostile_texts(3 * HEAD_CHARS) | {
        "a quoted cookie": 'pabal_session="' + "\\" * 14_900 + '"',
        "trusted hops": "127.0.0.1, " * 1_300,
        "basic credentials": "Basic " + "QUFB" * 3_700,
        "a token": "Bearer " + "eyJ" + "A" * 14_000 + ".e30.AAAA",
        "dotted token": "Bearer " + "." * 14_900,
        "languages": "xx-YY;q=0.1," * 1_200,
        "ranges": "bytes=" + "0-1," * 3_600,
    }
    for header in sorted(READ_HEADERS - {"content-length"}):
        for name, text in texts.items():
            value = text.encode("utf-8")[: 3 * HEAD_CHARS].decode("latin-1").replace("\n", " ").replace("\x01", " ")
            for target in header_targets(header):
                yield f"{header}, {name}, {target}", RawRequest("GET", target, ((header, value),))
            if header not in {"authorization", "cookie"}:
                signed = ((header, value), ("Cookie", visitors.cookie_header))
                yield f"{header}, {name}, signed in", RawRequest("GET", "/console", signed)
    for number in (100, 1_400):
        many = tuple((f"X-{index}", "a") for index in range(number))
        yield f"{number} headers", RawRequest("GET", "/health", many)


def header_targets(header: str) -> tuple[str, ...]:
    """Every target for the headers that all requests read; the others on one of each kind."""
    return HEADER_TARGETS if header in {"authorization", "cookie"} else HEADER_TARGETS[::4]


def test_no_query_is_slow(served: LoopThread, visitors: Visitors, database_urls: DatabaseUrls) -> None:
    assert_quick(served, database_urls, query_cases(served.hub, visitors))


def query_cases(hub: Hub, visitors: Visitors) -> Iterator[Case]:
    for route in unique_routes():
        if route.query_type:
            headers = header_lines(visitors.headers_for(route))
            for name, query in route_queries(route.query_type):
                yield f"{route.name}, {name}", RawRequest("GET", f"{example_path(route)}?{query}", headers)
    for method, path in page_paths(hub):
        if method == "GET":
            for name, query in page_queries():
                yield f"{path}, {name}", page_request("GET", f"{fill_path(path, 'example')}?{query}", visitors)


def route_queries(kind: type[RequestQuery]) -> Iterator[tuple[str, str]]:
    lengths = dict(text_fields(kind))
    for field in kind.__struct_fields__:
        fitting = min(lengths.get(field) or HEAD_CHARS, HEAD_CHARS)
        yield from ((f"{field}, {name}", f"{field}={quote(text)}") for name, text in hostile_texts(fitting).items())
        for unit in LARGE_VALUES:
            yield f"{field}, large {unit!r}", f"{field}={quote(hostile_text(unit, HEAD_CHARS))}"
    yield from many_parameters().items()


def page_queries() -> Iterator[tuple[str, str]]:
    filters = [name for name in sorted(QUERY_NAMES) if name not in SINGLE_QUERY_NAMES]
    for name, text in hostile_texts(HEAD_CHARS // len(filters)).items():
        yield name, "&".join(f"{parameter}={quote(text)}" for parameter in filters)
    for parameter in SINGLE_QUERY_NAMES:
        for unit in LARGE_VALUES:
            yield f"{parameter}, large {unit!r}", f"{parameter}={quote(hostile_text(unit, HEAD_CHARS))}"
    yield from many_parameters().items()


def many_parameters() -> dict[str, str]:
    return {
        "many parameters": "&".join(f"a{number}=" for number in range(2_000)),
        "the same parameter": "&".join(["a"] * 7_000),
        "ampersands": "&" * 14_000,
        "escapes": "a=" + "%41" * 4_500,
        "plus signs": "a=" + "+" * 14_000,
    }


def test_no_field_of_a_body_is_slow(served: LoopThread, visitors: Visitors, database_urls: DatabaseUrls) -> None:
    assert_quick(served, database_urls, body_field_cases(visitors))


def body_field_cases(visitors: Visitors) -> Iterator[Case]:
    for route in unique_routes():
        kind = route.body_type
        if kind is None:
            continue
        example, lengths = example_struct(kind), dict(text_fields(kind))
        for field, length in lengths.items():
            values = hostile_texts(length or 8_000)
            values |= {f"large {unit!r}": hostile_text(unit, BODY_BYTES // 4) for unit in LARGE_VALUES}
            for name, text in values.items():
                body = example | {field: replace_text(example_value(field), text)}
                yield (
                    f"{route.name}, {field}, {name}",
                    json_request(route, visitors, json.dumps(body, ensure_ascii=False).encode()),
                )


def json_request(route: Route, visitors: Visitors, body: bytes) -> RawRequest:
    headers = (*header_lines(visitors.headers_for(route)), JSON)
    return RawRequest(route.method, example_path(route), headers, body)


def test_no_body_is_slow(served: LoopThread, visitors: Visitors, database_urls: DatabaseUrls) -> None:
    assert_quick(served, database_urls, body_cases(visitors))


def body_cases(visitors: Visitors) -> Iterator[Case]:
    """Large documents as the whole body, and as the field with the loosest type."""
    for route in unique_routes():
        if route.body_type is None:
            continue
        example = example_struct(route.body_type)
        loose = [name for name in LOOSE_FIELDS if name in route.body_type.__struct_fields__]
        documents = hostile_documents(min(route.max_body_bytes or BODY_BYTES, BODY_BYTES) - BODY_RESERVE)
        for name, document in documents.items():
            yield f"{route.name}, {name}", json_request(route, visitors, document)
            for field in loose:
                body = json.dumps({key: value for key, value in example.items() if key != field}).encode()
                separator = b"," if len(body) > len(b"{}") else b""
                for value in (document, b'{"a":' + document + b"}"):
                    encoded = body[:-1] + separator + b'"%s":' % field.encode() + value + b"}"
                    yield f"{route.name}, {field}, {name}", json_request(route, visitors, encoded)
    for name, document in hostile_documents(BODY_BYTES - BODY_RESERVE).items():
        yield f"webhook, {name}", RawRequest("POST", "/kakao/webhook", WEBHOOK, document)
        yield f"webhook, more, {name}", RawRequest("POST", "/kakao/webhook", WEBHOOK, webhook_body(b'"hi"', document))


def webhook_body(utterance: bytes, more: bytes = b"1") -> bytes:
    """A message of a new user: a repeated one gets its first response, and wrong codes soon lock their user."""
    user = b'{"id":"user-%s"}' % UNIQUE
    return b'{"bot":{"id":"bot"},"userRequest":{"user":%s,"utterance":%s},"more":%s}' % (user, utterance, more)


def test_no_webhook_text_is_slow(served: LoopThread, visitors: Visitors, database_urls: DatabaseUrls) -> None:
    assert_quick(served, database_urls, webhook_cases())


def webhook_cases() -> Iterator[Case]:
    for prefix in ("", "/pair ", "/", " "):
        for name, text in (hostile_texts(MESSAGE_CHARS) | {"large": "a" * (BODY_BYTES // 2)}).items():
            utterance = json.dumps(prefix + text, ensure_ascii=False).encode()
            yield f"webhook, {prefix}{name}", RawRequest("POST", "/kakao/webhook", WEBHOOK, webhook_body(utterance))


def test_no_form_is_slow(served: LoopThread, visitors: Visitors, database_urls: DatabaseUrls) -> None:
    assert_quick(served, database_urls, form_cases(served.hub, visitors))


def form_cases(hub: Hub, visitors: Visitors) -> Iterator[Case]:
    for route in unique_routes():
        if route.form_type is None:
            continue
        headers = (*header_lines(visitors.headers_for(route)), FORM)
        for field in route.form_type.__struct_fields__:
            for name, text in hostile_texts(FORM_CHARS).items():
                body = f"{field}={quote(text)}".encode()[:BODY_BYTES]
                yield f"{route.name}, {field}, {name}", RawRequest("POST", route.path, headers, body)
        for name, body in many_fields(BODY_BYTES).items():
            yield f"{route.name}, {name}", RawRequest("POST", route.path, headers, body)
    for method, path in page_paths(hub):
        if method != "POST":
            continue
        target = fill_path(path, "example")
        csrf = f"csrf_token={visitors.csrf_for(path)}&".encode()
        for name, text in hostile_texts(FORM_CHARS // len(FORM_NAMES)).items():
            body = "&".join(f"{field}={quote(text)}" for field in sorted(FORM_NAMES - {CSRF_FIELD})).encode()
            yield f"{path}, all, {name}", page_request("POST", target, visitors, csrf + body)
        for name, body in many_fields(65_000).items():
            yield f"{path}, {name}", page_request("POST", target, visitors, csrf + body)


def many_fields(size: int) -> dict[str, bytes]:
    return {
        "many fields": b"&".join(b"a%d=" % number for number in range(size // 8)),
        "the same field": b"letter=1&" * (size // 9),
        "ampersands": b"&" * size,
        "escapes": b"a=" + b"%41" * (size // 3),
        "plus signs": b"a=" + b"+" * size,
        "not UTF-8": b"a=" + b"\xff" * size,
    }
