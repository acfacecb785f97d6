from ipaddress import ip_network

import httpx2
import pytest
from structlog.testing import capture_logs

from pabal.hub import Hub
from pabal.web.middleware import MAX_LOGGED_PATH, collapse_leading_slashes
from pabal.web.request import client_address

pytestmark = pytest.mark.anyio


async def test_every_response_has_the_security_headers(web: httpx2.AsyncClient) -> None:
    for path in ("/health", "/no-such-path", "/console/login", "/console/static/pabal.css", "/docs"):
        response = await web.get(path)

        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["x-frame-options"] == "DENY"
        assert response.headers["referrer-policy"] == "no-referrer"
        assert "unsafe" not in response.headers["content-security-policy"]
        assert "default-src 'none'" in response.headers["content-security-policy"]
        assert "server" not in response.headers


async def test_a_doubled_leading_slash_is_collapsed(web: httpx2.AsyncClient) -> None:
    doubled = web.base_url.copy_with(raw_path=b"//health")

    response = await web.get(doubled)

    assert response.request.url.raw_path == b"//health"
    assert response.status_code == 200


@pytest.mark.parametrize(
    ("path", "collapsed"), [("//health", "/health"), ("///a//b", "/a//b"), ("/a//b", "/a//b"), ("/", "/")]
)
def test_only_leading_slashes_are_collapsed(path: str, collapsed: str) -> None:
    assert collapse_leading_slashes(path) == collapsed


async def test_a_long_path_is_cut_in_the_log(web: httpx2.AsyncClient) -> None:
    with capture_logs() as logs:
        await web.get(f"/no-such-path/{'a' * 12_000}")

    [record] = [record for record in logs if record["event"] == "request answered"]
    assert record["path"] == f"/no-such-path/{'a' * 12_000}"[:MAX_LOGGED_PATH]


PROXY, CLIENT = "10.0.0.1", "203.0.113.9"


@pytest.mark.parametrize(
    ("peer", "headers", "client"),
    [
        (CLIENT, {"x-forwarded-for": "1.2.3.4", "x-real-ip": "1.2.3.4"}, CLIENT),
        (PROXY, {}, PROXY),
        (PROXY, {"x-forwarded-for": CLIENT}, CLIENT),
        (PROXY, {"x-forwarded-for": f"1.2.3.4, {CLIENT}"}, CLIENT),
        (PROXY, {"x-forwarded-for": f"1.2.3.4, {CLIENT}, 10.0.0.2"}, CLIENT),
        (PROXY, {"x-forwarded-for": f"{CLIENT}, nonsense"}, PROXY),
        (PROXY, {"x-forwarded-for": "10.0.0.3, 10.0.0.2"}, "10.0.0.3"),
        (PROXY, {"x-real-ip": CLIENT}, CLIENT),
        (PROXY, {"x-real-ip": "nonsense"}, PROXY),
        (f"::ffff:{PROXY}", {"x-forwarded-for": "2001:db8::1"}, "2001:db8::1"),
    ],
)
def test_only_a_trusted_proxy_may_forward_the_client_address(peer: str, headers: dict[str, str], client: str) -> None:
    scope = {"client": (peer, 1), "headers": [(name.encode(), value.encode()) for name, value in headers.items()]}

    assert client_address(scope, [ip_network("10.0.0.0/8")]) == client


async def test_request_metrics_are_labelled_with_the_route_not_the_path(hub: Hub, web: httpx2.AsyncClient) -> None:
    await web.get("/healthz")
    await web.get("/console/no-such-page-0123456789")

    metrics = (await web.get("/metrics")).text
    assert 'http_route="/healthz"' in metrics
    assert 'http_response_status_code="404"' in metrics
    assert "no-such-page-0123456789" not in metrics
    assert 'le="0.0025"' in metrics
