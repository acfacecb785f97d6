"""Every route of the API with every kind of credential: only the kinds it is made for are accepted."""

from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta

import httpx2
import pytest

from pabal.api import routes
from pabal.console.access.login import OPERATOR_COOKIE
from pabal.console.chat import CHAT_COOKIE
from pabal.console.portal.login import PORTAL_COOKIE
from pabal.hub import DatabaseUrls
from pabal.notifications.people.tokens import exchange_person_link, issue_person_link
from pabal.relay.accounts import disable_account
from pabal.tokens.permission import Permission
from pabal.web.auth import PERSON_COOKIE
from pabal.web.route import ErrorFormat, Route
from relay.people import TESTER, add_account, new_session
from security.owner_connection import OwnerConnection
from security.visitors import PERSON, USER, Visitors, create_visitors
from support.loop_thread import LoopThread, RawRequest
from support.oauth_client import bearer, register_oauth_service
from support.route_examples import example_path
from support.webhook import WEBHOOK_SECRET

Headers = dict[str, str]
REFUSED = frozenset({401, 403})
PUBLIC = frozenset(
    {
        "docs",
        "get_health",
        "get_liveness",
        "get_jwks",
        "get_metrics",
        "get_oauth_metadata",
        "get_readiness",
        "get_relay_session_status",
        "openapi_document",
        "post_relay_session",
    }
)
"""Routes that need no credential. A new route without one has to be added here."""
ACCEPTED: dict[str, frozenset[str]] = {
    "service": frozenset({"access token"}),
    "service or person": frozenset({"access token", "person token"}),
    "person": frozenset({"person token"}),
    "relay": frozenset({"relay token", "session token"}),
    "oauth client": frozenset({"client secret"}),
    "oauth caller": frozenset({"client secret", "access token"}),
    "webhook": frozenset({"webhook secret"}),
}
"""The credentials that each kind of route accepts. All others are refused."""


KINDS: tuple[tuple[str, Callable[[Route], object]], ...] = (
    ("service or person", lambda route: route.permission and route.person_auth),
    ("service", lambda route: route.permission),
    ("person", lambda route: route.person_auth),
    ("oauth client", lambda route: route.name == "post_oauth_token"),
    ("oauth caller", lambda route: route.error_format is ErrorFormat.OAUTH),
    ("webhook", lambda route: route.name == "post_kakao_webhook"),
    ("relay", lambda route: route.relay_auth or route.name == "get_relay_stream"),
)


def kind_of(route: Route) -> str:
    return next((kind for kind, matches in KINDS if matches(route)), "public")


def test_every_route_without_a_credential_is_listed() -> None:
    assert {route.name for route in routes.ROUTES if kind_of(route) == "public"} == PUBLIC


async def ended_credentials(served: LoopThread, travel: Callable[[timedelta], Awaitable[None]]) -> dict[str, Headers]:
    """Credentials that were valid once: expired, revoked, used, or of a disabled tenant."""
    hub = served.hub
    async with httpx2.AsyncClient(base_url=served.origin) as web:
        old, disabled = (
            await register_oauth_service(hub, web, "old", *Permission),
            await register_oauth_service(hub, web, "disabled", *Permission),
        )
        expired, revoked = (await old.tokens())["access_token"], (await old.tokens())["access_token"]
        of_disabled = (await disabled.tokens())["access_token"]
        await old.call("revoke", token=revoked)
        await disabled.set_active(active=False)
    owner, session = await add_account(hub, "disabled"), await new_session(hub)
    async with hub.transaction() as tx:
        expired_person = (await issue_person_link(tx, PERSON, TESTER)).token
        await disable_account(tx, owner.account, TESTER)
    await travel(timedelta(hours=2))
    hub.token_verifier.invalidate()
    async with hub.transaction() as tx:
        used_link = (await issue_person_link(tx, PERSON, TESTER)).token
        await exchange_person_link(tx, used_link)
    return {
        "expired access token": bearer(expired),
        "revoked access token": bearer(revoked),
        "access token of a disabled service": bearer(of_disabled),
        "secret of a disabled service": disabled.basic,
        "relay token of a disabled account": owner.bearer,
        "expired session token": bearer(session.token),
        "expired person token": bearer(expired_person),
        "used person token": bearer(used_link),
    }


def valid_credentials(served: LoopThread, visitors: Visitors) -> dict[str, Headers]:
    cookies = {name: {"cookie": f"{name}={value}"} for name, value in visitors.cookies.items()}
    return {
        "nothing": {},
        "access token": visitors.token,
        "client secret": visitors.secret,
        "relay token": visitors.relay.bearer,
        "session token": bearer(served.run(new_session(served.hub)).token),
        "person token": visitors.person,
        "webhook secret": {"x-pabal-secret": WEBHOOK_SECRET.get_secret_value()},
        "webhook secret as a token": bearer(WEBHOOK_SECRET.get_secret_value()),
        "operator cookie": cookies[OPERATOR_COOKIE],
        "portal cookie": cookies[PORTAL_COOKIE],
        "chat cookie": cookies[CHAT_COOKIE],
        "operator cookie as a token": bearer(visitors.cookies[OPERATOR_COOKIE]),
        "portal cookie as a token": bearer(visitors.cookies[PORTAL_COOKIE]),
        "chat cookie as a token": bearer(visitors.cookies[CHAT_COOKIE]),
        "person cookie as a token": bearer(visitors.cookies[PERSON_COOKIE]),
    }


def test_a_route_accepts_only_its_kinds_of_credential(
    served: LoopThread, database_urls: DatabaseUrls, travel: Callable[[timedelta], Awaitable[None]]
) -> None:
    ended = served.run(ended_credentials(served, travel))
    visitors = served.run(create_visitors(served.hub, served.origin))
    offered = ended | valid_credentials(served, visitors)
    wrong: dict[str, int] = {}
    with OwnerConnection(served, database_urls) as owner:
        for route, name, headers in combinations(offered):
            owner.reset_limits()
            status, _ = served.send(request_with(route, headers))
            if (status not in REFUSED) != (name in ACCEPTED[kind_of(route)]) or status in {0, 429, 500, 503}:
                wrong[f"{route.method} {route.path} ({kind_of(route)}) with {name}"] = status

    assert wrong == {}


def combinations(offered: dict[str, Headers]) -> Iterator[tuple[Route, str, Headers]]:
    for route in routes.ROUTES:
        if kind_of(route) != "public":
            yield from ((route, name, headers) for name, headers in offered.items())


def request_with(route: Route, headers: Headers) -> RawRequest:
    """A request with an invalid body: credentials are checked first, except in OAuth, where a form may carry them."""
    content, body = ("application/json", b"{" if route.body_type else b"")
    if kind_of(route) == "webhook":
        body = b'{"userRequest":{"user":{"id":"mina"},"utterance":"hi"}}'
    if route.form_type:
        content, body = "application/x-www-form-urlencoded", b"grant_type=client_credentials&token=x"
    return RawRequest(route.method, example_path(route), (*headers.items(), ("content-type", content)), body)


@pytest.mark.parametrize("method", ["GET", "POST", "PUT"])
def test_a_person_cookie_opens_only_the_routes_of_the_person(
    served: LoopThread, visitors: Visitors, database_urls: DatabaseUrls, method: str
) -> None:
    """Without the origin of a page of ours, a cookie changes nothing."""
    cookie = {"cookie": f"{PERSON_COOKIE}={visitors.cookies[PERSON_COOKIE]}"}
    with OwnerConnection(served, database_urls) as owner:
        for route in routes.ROUTES:
            if route.method != method or kind_of(route) == "public":
                continue
            owner.reset_limits()
            status, _ = served.send(request_with(route, cookie))
            is_accepted = route.person_auth and method == "GET"
            assert (route.path, status in REFUSED) == (route.path, not is_accepted)


def test_another_account_does_not_exist_for_a_relay_token(served: LoopThread, visitors: Visitors) -> None:
    other = served.run(add_account(served.hub, "other"))
    body = b'{"conversationKey":"bot:%s"}' % USER.encode()
    statuses = {
        action: [
            served.send(RawRequest("POST", f"/v1/pairing/{action}", tuple(owner.bearer.items()), body))[0]
            for owner in (other, visitors.relay)
        ]
        for action in ("approve", "deny", "block", "unblock", "unpair")
    }

    assert {status for status, _ in statuses.values()} == {404}
    assert 404 not in {status for _, status in statuses.values()}
