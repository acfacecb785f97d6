"""Malformed requests to the OAuth endpoints: an RFC error, never a 500, and nothing is written."""

import asyncio
import base64
from collections.abc import AsyncGenerator, Iterator
from urllib.parse import quote, urlsplit

import httpx2
import msgspec
import pytest

from pabal.api.oauth import TokenGrantForm, TokenLookupForm
from pabal.core.secrets import encode_base64url
from pabal.hub import DatabaseUrls, Hub
from pabal.keys.key import KeyUse
from support.clusters import open_connection
from support.oauth_client import RegisteredService, register_oauth_service

pytestmark = pytest.mark.anyio

FORM = {"content-type": "application/x-www-form-urlencoded"}
GRANT = b"grant_type=client_credentials"
ROW_COUNTS = """
select array[
    (select count(*) from public.token_families), (select count(*) from public.service_tokens),
    (select count(*) from public.refresh_tokens), (select count(*) from public.event_queue),
    (select count(*) from pabal.audit_log where action <> 'authentication.failed')
]
"""


@pytest.fixture
async def minu(hub: Hub, web: httpx2.AsyncClient, database_urls: DatabaseUrls) -> AsyncGenerator[RegisteredService]:
    """A service; after the test, no row may have been written."""
    service = await register_oauth_service(hub, web, "minu_test", "read", "tokens:introspect")
    assert database_urls.direct
    async with open_connection(database_urls.direct) as conn:
        before = await conn.fetchval(ROW_COUNTS)
        yield service
        assert await conn.fetchval(ROW_COUNTS) == before


async def reset_limits(database_urls: DatabaseUrls) -> None:
    """Reset the rate limit of failed authentications: these tests cause hundreds."""
    assert database_urls.direct
    async with open_connection(database_urls.direct) as conn:
        await conn.execute("delete from pabal.limits")


def basic(text: bytes) -> bytes:
    return b"Basic " + base64.b64encode(text)


MALFORMED_CREDENTIALS = {
    "empty": b"",
    "a scheme": b"Basic",
    "not base64": b"Basic !!!",
    "base64 cut short": b"Basic bWludV90ZXN0Og",
    "not ASCII": b"Basic caf\xe9",
    "bytes": b"\xff\xfe\xfd",
    "no colon": basic(b"minu_test"),
    "empty name and secret": basic(b":"),
    "no secret": basic(b"minu_test:"),
    "no name": basic(b":secret"),
    "not UTF-8": basic(b"minu_test:\xff\xfe"),
    "a lone surrogate": basic(b"minu_test:\xed\xa0\x80"),
    "a lone surrogate, encoded": basic(b"minu_test:%ED%A0%80"),
    "NUL": basic(b"minu_test:\0"),
    "NUL in the name": basic(b"minu\0test:secret"),
    "NUL, encoded": basic(b"minu%00test:%00"),
    "percent garbage": basic(b"%zz%:%%%"),
    "many colons": basic(b"minu_test:::::"),
    "a newline": basic(b"minu_test\n:secret"),
    "a long name": basic(b"a" * 10_000 + b":secret"),
    "a long secret": basic(b"minu_test:" + b"a" * 10_000),
    "another scheme": b"Digest username=minu_test",
    "another scheme's token": b"Bearer x.y.z",
    "two credentials in one header": b"Basic a, Basic b",
}


@pytest.mark.parametrize("endpoint", ["token", "revoke", "introspect"])
async def test_malformed_credentials_are_rejected(
    endpoint: str, minu: RegisteredService, web: httpx2.AsyncClient, database_urls: DatabaseUrls
) -> None:
    for name, header in MALFORMED_CREDENTIALS.items():
        if endpoint != "token" and header.startswith(b"Bearer"):
            continue
        await reset_limits(database_urls)
        response = await web.post(
            f"/oauth/{endpoint}",
            content=GRANT + b"&token=x",
            headers=[(b"authorization", header), *encode_headers(FORM)],
        )

        assert (name, response.status_code, response.json()["error"]) == (name, 401, "invalid_client")
        assert response.headers["www-authenticate"].startswith("Basic ")


def encode_headers(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in headers.items()]


def malformed_tokens(kid: str) -> dict[str, bytes]:
    def token(header: bytes, rest: bytes = b".e30.AAAA") -> bytes:
        return encode_base64url(header).encode() + rest

    header_start = b'{"alg":"ES256","typ":"at+jwt","kid":"%s"' % kid.encode()
    return {
        "a word": b"x",
        "dots": b"...",
        "bytes": b"caf\xe9.\xff.\xfe",
        "a space in it": b"a b",
        "huge": b"a" * 4_000,
        "padding": b"e30=.e30=.e30=",
        "no object": token(b"[]"),
        "not JSON": token(b"{"),
        "not UTF-8": token(b"\xff\xfe"),
        "deeply nested": token(b'{"x":' + b"[" * 2900),
        "nested in a kid": token(b'{"alg":"ES256","kid":' + b"[" * 2900),
        "a kid that is a number": token(b'{"alg":"ES256","kid":1}'),
        "a lone surrogate": token(b'{"alg":"ES256","kid":"\\ud800"}'),
        "crit that is not a list": token(header_start + b',"crit":1}'),
        "unknown crit": token(header_start + b',"crit":["x"]}'),
        "an unencoded body": token(header_start + b',"crit":["b64"],"b64":false}', b".{}.AAAA"),
        "no signature": token(header_start + b"}", b".e30."),
        "two parts": token(header_start + b"}", b".e30"),
        "five parts": token(header_start + b"}", b".e30.AAAA.AAAA.AAAA"),
        "an all-zero signature": token(header_start + b"}", b".e30." + encode_base64url(bytes(64)).encode()),
        "a key inside": token(header_start + b',"jwk":{"kty":"oct","k":"AAAA"},"jku":"http://127.0.0.1/"}'),
    }


@pytest.mark.parametrize("endpoint", ["revoke", "introspect"])
async def test_malformed_tokens_are_rejected(endpoint: str, minu: RegisteredService, web: httpx2.AsyncClient) -> None:
    for name, token in malformed_tokens(minu.hub.key_ring.active(KeyUse.SIGNING).id).items():
        headers = [(b"authorization", b"Bearer " + token), *encode_headers(FORM)]
        response = await web.post(f"/oauth/{endpoint}", content=b"token=x", headers=headers)

        assert (name, response.status_code, response.json()["error"]) == (name, 401, "invalid_token")
        assert response.headers["www-authenticate"].startswith('Bearer realm="pabal", error="invalid_token"')
        assert (await minu.call("introspect", token=token.decode("latin-1"))).json() == {"active": False}


HOSTILE_VALUES = {
    "NUL": b"%00",
    "a lone surrogate": b"%ED%A0%80",
    "not UTF-8": b"%FF%FE",
    "not UTF-8, bare": b"\xff\xfe",
    "percent garbage": b"%zz%%%",
    "controls": b"%01%07%1b%7f%0d%0a",
    "all of Unicode": quote("파발\U0001f40e\u202e\ufffe", safe="").encode(),
    "quotes": b"%22%27%5C%3B--",
    "long": b"a" * 50_000,
    "deep JSON": b"[" * 50_000,
    "a list": b"a&FIELD=b",
    "an index": b"a&FIELD[]=b&FIELD[0]=c",
    "a number": b"1e400",
}


def hostile_forms() -> Iterator[tuple[str, str, bytes]]:
    for endpoint, kind, rest in (
        ("token", TokenGrantForm, {"grant_type": "client_credentials", "scope": "nonsense"}),
        ("token", TokenGrantForm, {"grant_type": "refresh_token", "refresh_token": "pbr_x"}),
        ("revoke", TokenLookupForm, {"token": "x"}),
        ("introspect", TokenLookupForm, {"token": "x"}),
    ):
        for field in (*(info.name for info in msgspec.structs.fields(kind)), "unknown"):
            others = b"".join(f"&{name}={value}".encode() for name, value in rest.items() if name != field)
            for name, value in HOSTILE_VALUES.items():
                body = field.encode() + b"=" + value.replace(b"FIELD", field.encode()) + others
                yield f"{endpoint}: {field} is {name}", endpoint, body


ERRORS = {"invalid_request", "invalid_scope", "invalid_grant", "unsupported_grant_type"}


async def test_any_field_value_gets_an_rfc_response(minu: RegisteredService, web: httpx2.AsyncClient) -> None:
    for name, endpoint, body in hostile_forms():
        response = await web.post(f"/oauth/{endpoint}", content=body, headers=minu.basic | FORM)

        if response.status_code == 200:  # unknown fields are ignored, and an invalid token is inactive
            assert endpoint != "token", name
            assert response.content in {b"", b'{"active":false}'}, name
        else:
            assert (name, response.status_code) == (name, 400)
            assert response.json()["error"] in ERRORS
            assert response.json()["error_description"].isascii()
            assert response.json()["error_description"].isprintable()
        assert response.status_code == 400 or not any(invalid in name for invalid in ("NUL", "bare", "a list"))


BODIES: dict[str, tuple[bytes, tuple[int, str]]] = {
    "an empty body": (b"", (400, "invalid_request")),
    "ampersands": (b"&&&&&", (400, "invalid_request")),
    "equals": (b"=====", (400, "invalid_request")),
    "bytes": (bytes(range(256)), (400, "invalid_request")),
    "deep JSON": (b"[" * 60_000, (400, "invalid_request")),
    "JSON": (b'{"grant_type": "client_credentials"}', (400, "invalid_request")),
    "a thousand fields": (GRANT + b"".join(b"&x%d=1" % n for n in range(1000)), (400, "invalid_request")),
    "60,000 ampersands": (b"&" * 60_000, (400, "invalid_request")),
    "a million ampersands": (b"&" * 1_000_000, (413, "invalid_request")),
    "semicolons": (GRANT + b";scope=read", (400, "unsupported_grant_type")),
    "UTF-16": (GRANT.decode().encode("utf-16"), (400, "invalid_request")),
    "10 MB": (GRANT + b"&x=" + b"a" * 10_000_000, (413, "invalid_request")),
    "a scope of a thousand names": (GRANT + b"&scope=" + b"no+" * 1000, (400, "invalid_scope")),
}


async def test_any_body_gets_an_rfc_error(minu: RegisteredService, web: httpx2.AsyncClient) -> None:
    results = {}
    for name, (body, _) in BODIES.items():
        response = await web.post("/oauth/token", content=body, headers=minu.basic | FORM)
        results[name] = (response.status_code, response.json()["error"])

    assert results == {name: expected for name, (_, expected) in BODIES.items()}


CONTENT_TYPES = (
    "",
    "/",
    ";",
    "text/plain",
    "application/json",
    "multipart/form-data",
    "multipart/form-data; boundary=x",
    "application/x-www-form-urlencoded2",
    "application/x-www-form-urlencoded, text/plain",
    "x" * 10_000,
)


async def test_any_content_type_gets_an_rfc_error(minu: RegisteredService, web: httpx2.AsyncClient) -> None:
    for content_type in CONTENT_TYPES:
        response = await web.post("/oauth/token", content=GRANT, headers=minu.basic | {"content-type": content_type})

        assert (response.status_code, response.json()["error"]) == (400, "invalid_request")


LENGTHS = {
    b"Content-Length: many": 400,
    b"Content-Length: -1": 400,
    b"Content-Length: 1.5": 400,
    b"Content-Length: 99999999999999999999999": 400,
    b"Content-Length: 10000000000": 413,
    b"Content-Length: 29\r\nContent-Length: 28": 400,
    b"Content-Length: 29\r\nTransfer-Encoding: chunked": 400,
    b"Transfer-Encoding: chunked, gzip": 400,
    b"Content-Length: 0": 400,
    b"Content-Length: 29\r\nX-Odd: a\0b": 400,
    b"Content-Length: 29\r\nX Odd: a": 400,
    b"Content-Length: 29\r\nX-Long: " + b"a" * 200_000: 431,
}


async def test_any_content_length_gets_an_error(minu: RegisteredService, web: httpx2.AsyncClient) -> None:
    results = {}
    for header in LENGTHS:
        lines = [b"POST /oauth/token HTTP/1.1", b"Host: hub", b"Authorization: " + minu.basic["authorization"].encode()]
        lines += [b"Content-Type: application/x-www-form-urlencoded", b"Connection: close", header, b"", GRANT]
        results[header] = await status_of(web, b"\r\n".join(lines))

    assert results == LENGTHS


async def status_of(web: httpx2.AsyncClient, request: bytes) -> int:
    """Send a raw request that no client library would send."""
    target = urlsplit(str(web.base_url))
    reader, writer = await asyncio.open_connection(target.hostname, target.port)
    try:
        writer.write(request)
        line = await asyncio.wait_for(reader.readline(), 10)
        return int(line.split()[1])
    finally:
        writer.close()
