"""Pages and responses that show the largest stored payloads do not keep the event loop busy either."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from pabal.db.stored_json import MAX_RESPONSE_BYTES
from pabal.events.publish.publish import MAX_EVENT_PAYLOAD_BYTES
from security.visitors import Visitors
from support.loop_thread import MAX_BLOCK, LoopThread, RawRequest
from support.webhook import WEBHOOK_SECRET

pytestmark = pytest.mark.slow

JSON = ("Content-Type", "application/json")
SIZE = MAX_EVENT_PAYLOAD_BYTES - 100
PAYLOADS = {
    "lists": b'{"a":[' + b",".join([b"[]"] * 49_000) + b"]}",
    "numbers": b'{"a":[' + b",".join([b"1"] * (SIZE // 2)) + b"]}",
    "keys": b"{" + b",".join(b'"camelCase-%x":1' % number for number in range(SIZE // 20)) + b"}",
    "one long key": b'{"' + b"aB" * (SIZE // 2) + b'":1}',
    "a text of tags": b'{"a":"' + b"<" * SIZE + b'"}',
    "a text of ids": b'{"a":"' + b"01890a5d-ac96-774b-bcce-b302099a8057 " * (SIZE // 37) + b'"}',
    "deep": b'{"a":' * 63 + b'"' + b"x" * (SIZE - 63 * 6) + b'"' + b"}" * 63,
}


def publish(served: LoopThread, visitors: Visitors, payload: bytes) -> str:
    body = b'{"event_type":"order.paid","target_service":"shop","max_retries":0,"payload":' + payload[:] + b"}"
    request = RawRequest("POST", "/v1/queue/events", (*visitors.token.items(), JSON), body)
    status, response = served.send(request)
    assert status == 202, response[-300:]
    return read_json(response)["id"]


def read_json(response: bytes) -> Any:
    return json.loads(response.partition(b"\r\n\r\n")[2])


def event_requests(event: str, visitors: Visitors) -> Iterator[RawRequest]:
    token, cookie = tuple(visitors.token.items()), (("Cookie", visitors.cookie_header),)
    yield RawRequest("GET", f"/v1/queue/events/{event}", token)
    yield RawRequest("GET", "/v1/queue/events?limit=100", token)
    for path in (f"/console/events/{event}", "/console/events", f"/console/trace?id={event}"):
        yield RawRequest("GET", path, cookie)


def slow_requests(served: LoopThread, requests: Iterator[RawRequest]) -> list[str]:
    slow: list[str] = []
    for request in requests:
        seconds, status = served.longest_block(request)
        assert status == 200, request
        if seconds >= MAX_BLOCK:
            slow.append(f"{seconds * 1000:.0f} ms: {request.method} {request.target}")
    return slow


@pytest.mark.parametrize("name", PAYLOADS)
def test_no_view_of_a_large_event_is_slow(served: LoopThread, visitors: Visitors, name: str) -> None:
    event = publish(served, visitors, PAYLOADS[name])

    assert slow_requests(served, event_requests(event, visitors)) == []


def test_no_list_of_large_events_is_slow(served: LoopThread, visitors: Visitors) -> None:
    events = [publish(served, visitors, PAYLOADS["numbers"]) for _ in range(100)]

    assert slow_requests(served, event_requests(events[0], visitors)) == []
    assert list_all(served, visitors)[: len(events)] == [*reversed(events)]


def list_all(served: LoopThread, visitors: Visitors) -> list[str]:
    """The ids of all pages. Each ends with the payload that reaches 8 MB."""
    ids: list[str] = []
    cursor = ""
    while True:
        request = RawRequest("GET", f"/v1/queue/events?limit=100{cursor}", tuple(visitors.token.items()))
        status, response = served.send(request)
        assert status == 200
        assert len(response) < MAX_RESPONSE_BYTES + 2 * MAX_EVENT_PAYLOAD_BYTES
        page = read_json(response)
        assert page["items"]
        ids += [event["id"] for event in page["items"]]
        if page["cursor"] is None:
            return ids
        cursor = f"&cursor={page['cursor']}"


def test_no_claim_of_large_events_is_slow(served: LoopThread, visitors: Visitors) -> None:
    """A claim of 100 takes fewer: those that reach 8 MB. The rest stays due."""
    published = {publish(served, visitors, PAYLOADS["numbers"]) for _ in range(100)}

    claim = RawRequest("POST", "/v1/queue/claim", (*visitors.token.items(), JSON), b'{"limit":100}')
    longest: list[float] = []
    claimed: set[str] = set()
    while claimed != published:
        with served.ticking() as turns:
            status, response = served.send(claim)
        assert status == 200
        assert len(response) < MAX_RESPONSE_BYTES + 2 * MAX_EVENT_PAYLOAD_BYTES
        events = {event["id"] for event in read_json(response)["events"]}
        assert events
        assert not events & claimed
        claimed |= events
        longest.append(max(turns))

    assert min(longest) < MAX_BLOCK  # a busy machine makes single turns longer


def test_a_claim_of_large_events_takes_the_most_urgent(served: LoopThread, visitors: Visitors) -> None:
    for _ in range(60):
        publish(served, visitors, PAYLOADS["numbers"])
    body = b'{"event_type":"order.paid","target_service":"shop","priority":1}'
    _, response = served.send(RawRequest("POST", "/v1/queue/events", (*visitors.token.items(), JSON), body))

    claim = RawRequest("POST", "/v1/queue/claim", (*visitors.token.items(), JSON), b'{"limit":60}')
    _, claimed = served.send(claim)

    assert read_json(response)["id"] in {event["id"] for event in read_json(claimed)["events"]}


def test_no_poll_of_large_messages_is_slow(served: LoopThread, visitors: Visitors) -> None:
    """A poll for 100 messages gets those whose payloads reach 2 MB; the next polls get the others, in order."""
    headers = (JSON, ("X-Pabal-Secret", WEBHOOK_SECRET.get_secret_value()))
    more = b",".join([b"1"] * 400_000)
    for number in range(12):
        user_request = b'{"user":{"id":"mina-plusfriend-1"},"utterance":"%d"}' % number
        body = b'{"bot":{"id":"bot"},"userRequest":%s,"more":[%s]}' % (user_request, more)
        served.send(RawRequest("POST", "/kakao/webhook", headers, body))

    poll = RawRequest("GET", "/v1/messages?limit=100&lease=900", tuple(visitors.relay.bearer.items()))
    longest: list[float] = []
    texts: list[str] = []
    while len(texts) < 12:
        with served.ticking() as turns:
            status, response = served.send(poll)
        messages = read_json(response)["messages"]
        assert (status, len(messages) in range(1, 4)) == (200, True)
        texts += [message["normalized"]["text"] for message in messages]
        longest.append(max(turns))

    assert texts == [str(number) for number in range(12)]
    assert min(longest) < MAX_BLOCK


WEBHOOK_BYTES = 1_000_000
MORE = {
    "lists": b"[" + b",".join([b"[]"] * 49_000) + b"]",
    "numbers": b"[" + b",".join([b"1"] * (WEBHOOK_BYTES // 2)) + b"]",
    "keys": b"{" + b",".join(b'"camelCase-%x":1' % number for number in range(WEBHOOK_BYTES // 20)) + b"}",
    "tags": b'"' + b"<" * WEBHOOK_BYTES + b'"',
}


@pytest.mark.parametrize("name", MORE)
def test_no_view_of_a_large_message_is_slow(served: LoopThread, visitors: Visitors, name: str) -> None:
    user, utterance = b'{"id":"mina-plusfriend-1"}', b'"hi"'
    request = b'{"bot":{"id":"bot"},"userRequest":{"user":%s,"utterance":%s},"more":%s}' % (user, utterance, MORE[name])
    served.send(
        RawRequest("POST", "/kakao/webhook", (JSON, ("X-Pabal-Secret", WEBHOOK_SECRET.get_secret_value())), request)
    )

    _, response = served.send(RawRequest("GET", "/v1/messages?lease=5", tuple(visitors.relay.bearer.items())))
    [message] = read_json(response)["messages"]
    cookie = (("Cookie", visitors.cookie_header),)
    paths = (
        f"/console/relay/messages/{message['id']}",
        f"/portal/messages/{message['id']}",
        "/portal/messages",
        "/chat",
    )
    assert slow_requests(served, (RawRequest("GET", path, cookie) for path in paths)) == []
    assert slow_requests(served, iter([RawRequest("GET", "/chat/export", cookie)])) == []
