"""Printed values, errors and log lines contain no secret."""

import base64
import logging
from collections.abc import Generator
from datetime import UTC, datetime, timedelta

import httpx2
import pytest
import structlog

from pabal.api.oauth import TokenGrantForm, TokenLookupForm, TokenPairView
from pabal.core.errors import PabalError
from pabal.core.log import configure_logging
from pabal.core.secrets import hash_token
from pabal.hub import DatabaseUrls, Hub
from pabal.keys.key import KeySet
from pabal.keys.keyring import KeyRing
from pabal.tokens.issue import OAuthClient, StoredCredentials
from pabal.tokens.issuer import decode_access_token, signing_jwk
from pabal.tokens.refresh import RepeatedTokens
from support.server import serve_hub
from tokens.token_operations import (
    BY,
    SHOP,
    add_shop,
    authenticate_with,
    issue_pair,
    load_token_state,
    owner_connection,
    present_refresh_token,
    refresh_pair,
)

pytestmark = pytest.mark.anyio


async def test_printing_a_value_shows_no_secret(hub: Hub) -> None:
    secret = await add_shop(hub)
    pair = await issue_pair(hub, secret)
    refreshed_pair = await refresh_pair(hub, pair.refresh_token)
    now = datetime.now(UTC)
    access = hub.token_issuer.create_access_token(
        SHOP, ("read",), pair.family_id, now=now, latest_expiry=now + timedelta(days=1)
    )
    refresh = hub.token_issuer.create_refresh_token(now=now, latest_expiry=now + timedelta(days=1))
    keys = KeySet.generate(now)
    repeated = RepeatedTokens(refresh.id, refresh.token, access.id, access.token, (), now, now)
    credentials = StoredCredentials(SHOP, (), True, now, (hash_token(secret).hex(),))
    values = [
        *(
            hub,
            pair,
            refreshed_pair,
            access,
            refresh,
            repeated,
            credentials,
            keys,
            *keys.all_keys,
            KeyRing(keys),
            hub.token_issuer,
            hub.token_verifier,
        ),
        *(
            OAuthClient(SHOP, ("read",), now),
            signing_jwk(keys.all_keys[0]),
            await load_token_state(hub, pair.refresh_token),
            BY,
        ),
        *(decode_access_token(hub.key_ring, pair.access_token, "pabal"), hub.settings),
        TokenGrantForm(grant_type="refresh_token", client_secret=secret, refresh_token=refresh.token),
        TokenLookupForm(token=access.token, client_secret=secret),
        TokenPairView(access_token=access.token, expires_in=3600, scope="", refresh_token=refresh.token),
    ]
    secrets = [
        secret,
        hash_token(secret).hex(),
        pair.access_token,
        str(pair.refresh_token),
        access.token,
        access.envelope,
        refresh.token,
    ]
    secrets += [refresh.envelope, refreshed_pair.access_token, str(refreshed_pair.refresh_token), "correct horse"]
    secrets += [form for key in keys.all_keys for form in (key.secret.hex(), repr(key.secret)[2:-1])]

    for value in values:
        for text in (repr(value), str(value), f"{value}"):
            assert not [candidate for candidate in secrets if candidate in text], type(value).__name__


async def test_no_error_quotes_the_credentials(hub: Hub) -> None:
    secret = await add_shop(hub)
    pair = await issue_pair(hub, secret)
    credentials = [secret, pair.access_token, str(pair.refresh_token), pair.access_token[:-9] + "A" * 9]

    for credential in credentials:
        errors: list[str] = [str(await present_refresh_token(hub, credential, "other"))]
        for call in (
            authenticate_with(hub, credential),
            authenticate_with(hub, SHOP, credential + "x"),
            hub.token_verifier.verify(credential + "x"),
        ):
            with pytest.raises(PabalError) as refusal:
                await call
            errors += [str(refusal.value), repr(refusal.value)]
        assert not [text for text in errors if credential in text]


class LogCapture(logging.Handler):
    """Captures every line of every library before redaction."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        trace = logging.Formatter().formatException(record.exc_info) if record.exc_info else ""
        self.lines.append(f"{record.name} {record.getMessage()} {record.__dict__} {trace}")


@pytest.fixture
def log_capture(capsys: pytest.CaptureFixture[str]) -> Generator[LogCapture]:
    assert capsys  # requested first, so that the hub's handler writes to the captured stream
    names = ("", "uvicorn", "uvicorn.error", "uvicorn.access", "asyncio", "asyncpg", "httpx2", "httpcore2", "pabal")
    loggers = [logging.getLogger(name) for name in names]
    before = [(logger.handlers[:], logger.level) for logger in loggers]
    configure_logging("debug", "json")
    capture = LogCapture()
    for logger in loggers:
        logger.setLevel(logging.DEBUG)
    logging.getLogger().addHandler(capture)
    yield capture
    for logger, (handlers, level) in zip(loggers, before, strict=True):
        logger.handlers[:], logger.level = handlers, level
    structlog.reset_defaults()


async def test_no_log_line_contains_a_secret_at_any_level(
    hub: Hub, database_urls: DatabaseUrls, log_capture: LogCapture, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = await add_shop(hub)
    wrong_secret = secret[:-1] + ("A" if secret[-1] != "A" else "B")
    secrets = [secret, wrong_secret, base64.b64encode(f"{SHOP}:{secret}".encode()).decode()]
    grant = {"grant_type": "client_credentials"}
    async with (
        serve_hub(hub) as address,
        httpx2.AsyncClient(base_url=address, auth=(SHOP, secret)) as client,
        httpx2.AsyncClient(base_url=address) as plain,
    ):
        first = (await client.post("/oauth/token", data=grant)).json()
        body = {"client_id": SHOP, "client_secret": secret}
        second = (await plain.post("/oauth/token", data=grant | body)).json()
        secrets += [secret_text[kind] for secret_text in (first, second) for kind in ("access_token", "refresh_token")]
        refresh = {"grant_type": "refresh_token", "refresh_token": first["refresh_token"]}
        third = (await client.post("/oauth/token", data=refresh)).json()
        fourth = (await client.post("/oauth/token", data=refresh | {"refresh_token": third["refresh_token"]})).json()
        secrets += [secret_text[kind] for secret_text in (third, fourth) for kind in ("access_token", "refresh_token")]
        responses = [
            await client.post("/oauth/token", data=refresh),
            await client.post("/oauth/token", data=grant, auth=(SHOP, wrong_secret)),
            await client.post("/oauth/token", data=grant, auth=(secret, wrong_secret)),
            await client.post("/oauth/token", content=f'{{"secret": "{secret}"}}'),
            await client.post("/oauth/introspect", data={"token": second["access_token"]}),
            await client.post("/oauth/revoke", data={"token": second["refresh_token"]}),
            await plain.post(
                "/oauth/introspect",
                data={"token": "x"},
                headers={"authorization": f"Bearer {second['access_token']}"},
            ),
        ]
        async with owner_connection(database_urls) as connection:
            await connection.execute("alter table public.service_secrets rename to gone")
        responses.append(await client.post("/oauth/token", data=grant))
    output = capsys.readouterr()

    assert [response.status_code for response in responses] == [400, 401, 401, 400, 403, 200, 401, 500]
    assert "service_secrets" in output.err, "the error was not logged"
    assert any(line.startswith("uvicorn") for line in log_capture.lines)
    bare_secrets = [
        part.removeprefix("pbs_").removeprefix("pbr_")
        for secret_text in secrets
        for part in secret_text.split(".")[-1:]
    ]
    lines = [*log_capture.lines, output.out, output.err]
    hub_lines = [line for line in lines if not line.startswith(("httpx2", "httpcore2"))]  # the test's own client
    assert output.err
    assert not [(secret_text, line) for secret_text in bare_secrets for line in hub_lines if secret_text in line]
