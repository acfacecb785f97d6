from ipaddress import ip_network

import httpx2
import pytest
from structlog.testing import capture_logs

from pabal.hub import Hub
from pabal.web.middleware import MAX_LOGGED_PATH, collapse_leading_slashes
from pabal.web.request import client_address

pytestmark = pytest.mark.anyio


async def test_every_answer_carries_the_security_headers(web: httpx2.AsyncClient) -> None:
    for path in ("/health", "/nowhere", "/console/login", "/console/static/pabal.css", "/docs"):
        answer = await web.get(path)

        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "server" not in answer.headers


async def test_a_doubled_leading_slash_is_one(web: httpx2.AsyncClient) -> None:
    doubled = web.base_url.copy_with(raw_path=b"//health")

    answer = await web.get(doubled)

    assert answer.request.url.raw_path == b"//health"
    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("path", "one"), [("//health", "/health"), ("///a//b", "/a//b"), ("/a//b", "/a//b"), ("/", "/")]
)
def test_only_the_leading_slashes_become_one(path: str, one: str) -> None:
    assert collapse_leading_slashes(path) == one


async def test_of_a_long_path_the_beginning_is_written_down(web: httpx2.AsyncClient) -> None:
    with capture_logs() as logs:
        await web.get(f"/nowhere/{'a' * 60_000}")

    [line] = [each for each in logs if each["event"] == "request answered"]
    assert line["path"] == f"/nowhere/{'a' * 60_000}"[:MAX_LOGGED_PATH]


PROXY, OUTSIDE = "10.0.0.1", "203.0.113.9"


@pytest.mark.parametrize(
    ("peer", "headers", "client"),
    [
        (OUTSIDE, {"x-forwarded-for": "1.2.3.4", "x-real-ip": "1.2.3.4"}, OUTSIDE),
        (PROXY, {}, PROXY),
        (PROXY, {"x-forwarded-for": OUTSIDE}, OUTSIDE),
        (PROXY, {"x-forwarded-for": f"1.2.3.4, {OUTSIDE}"}, OUTSIDE),
        (PROXY, {"x-forwarded-for": f"1.2.3.4, {OUTSIDE}, 10.0.0.2"}, OUTSIDE),
        (PROXY, {"x-forwarded-for": f"{OUTSIDE}, nonsense"}, PROXY),
        (PROXY, {"x-forwarded-for": "10.0.0.3, 10.0.0.2"}, "10.0.0.3"),
        (PROXY, {"x-real-ip": OUTSIDE}, OUTSIDE),
        (PROXY, {"x-real-ip": "nonsense"}, PROXY),
        (f"::ffff:{PROXY}", {"x-forwarded-for": "2001:db8::1"}, "2001:db8::1"),
    ],
)
def test_only_a_trusted_proxy_says_for_whom_it_speaks(peer: str, headers: dict[str, str], client: str) -> None:
    scope = {"client": (peer, 1), "headers": [(name.encode(), value.encode()) for name, value in headers.items()]}

    assert client_address(scope, [ip_network("10.0.0.0/8")]) == client


async def test_how_long_a_door_took_is_measured_under_its_name_not_its_path(hub: Hub, web: httpx2.AsyncClient) -> None:
    await web.get("/healthz")
    await web.get("/console/no-such-page-0123456789")

    told = (await web.get("/metrics")).text
    assert 'http_route="/healthz"' in told
    assert 'http_response_status_code="404"' in told
    assert "no-such-page-0123456789" not in told
    assert 'le="0.0025"' in told
