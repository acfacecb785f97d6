"""What an Authorization header brings."""

import base64
from urllib.parse import unquote_plus, urlsplit

from starlette.requests import Request
from starlette.responses import Response

from pabal.core.errors import Forbidden, InvalidClient, Unauthenticated
from pabal.db.tx import Tx
from pabal.hub import Hub
from pabal.notifications.people.tokens import PERSON_COOKIE_LIFETIME, PERSON_TOKEN_PREFIX, Person, find_person_by_token
from pabal.relay.auth import (
    AccountOwner,
    RelayPrincipal,
    authenticate_relay_token,
    hash_relay_secret,
    lock_owner_account,
    verify_owner_token,
)
from pabal.web.request import RequestContext


def bearer_token(header: str | None) -> str:
    """The token of a `Bearer` header (RFC 6750)."""
    scheme, _, token = (header or "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise Unauthenticated("an access token is needed: Authorization: Bearer …")
    return token.strip()


def basic_credentials(header: str | None) -> tuple[str, str] | None:
    """Name and secret of a `Basic` header (RFC 7617; each form-encoded, as RFC 6749 asks); None without a header."""
    if not header:
        return None
    scheme, _, written = header.partition(" ")
    try:
        text = base64.b64decode(written.strip(), validate=True).decode()
    except ValueError:  # not base64, not ASCII to begin with, or not UTF-8 inside
        raise InvalidClient from None
    name, colon, secret = text.partition(":")
    if scheme.lower() != "basic" or not colon:
        raise InvalidClient
    return unquote_plus(name), unquote_plus(secret)


def set_secure_cookie(hub: Hub, response: Response, name: str, value: str, *, max_age: int, path: str) -> None:
    secure = (hub.settings.public_url or "").startswith("https://")
    response.set_cookie(name, value, max_age=max_age, path=path, httponly=True, secure=secure, samesite="lax")


PERSON_COOKIE = "pabal_person"
SAFE_METHODS = frozenset({"GET", "HEAD"})


async def authenticate_person(request: Request, hub: Hub) -> Person:
    """Find whoever shows a person's token in the Authorization header, or brings the cookie it was swapped for."""
    header, cookie = request.headers.get("authorization"), request.cookies.get(PERSON_COOKIE)
    if header is None and cookie:
        if request.method not in SAFE_METHODS and not is_same_origin(request, hub):
            raise Forbidden("with a cookie this is only possible from a page of the hub itself")
        async with hub.autocommit() as tx:
            return await find_person_by_token(tx, cookie, "cookie")
    if header is None:
        raise Unauthenticated("a person's token is needed: Authorization: Bearer …")
    async with hub.autocommit() as tx:
        return await find_person_by_token(tx, bearer_token(header), "link")


def has_person_credentials(request: Request) -> bool:
    """Whether this is a person's way to come rather than a service's."""
    header = request.headers.get("authorization")
    return (
        PERSON_COOKIE in request.cookies
        if header is None
        else header.partition(" ")[2].strip().startswith(PERSON_TOKEN_PREFIX)
    )


def is_same_origin(request: Request, hub: Hub) -> bool:
    """Whether the browser says that a page of ours sent this. One that says nothing is not believed."""
    origin = request.headers.get("origin", "null")
    if origin == "null":
        return request.headers.get("sec-fetch-site") == "same-origin"
    public = urlsplit(hub.settings.public_url or "")
    schemes = ("https",) if public.scheme == "https" else ("http", "https")
    homes = filter(None, (request.headers.get("host"), public.netloc))
    return origin in {f"{scheme}://{home}" for home in homes for scheme in schemes}


def set_person_cookie(hub: Hub, response: Response, token: str) -> None:
    set_secure_cookie(
        hub, response, PERSON_COOKIE, token, max_age=int(PERSON_COOKIE_LIFETIME.total_seconds()), path="/"
    )


def clear_person_cookie(response: Response) -> None:
    response.delete_cookie(PERSON_COOKIE, path="/")


async def authenticate_relay(request: Request, hub: Hub) -> RelayPrincipal:
    """Find whoever shows a session's token or a relay token in the Authorization header."""
    token = bearer_token(request.headers.get("authorization"))
    async with hub.autocommit() as tx:
        return await authenticate_relay_token(tx, token)


async def verify_owner_in_transaction(tx: Tx, context: RequestContext, owner: AccountOwner) -> None:
    """See in a deed's own transaction that the token its owner came with is good until it ends."""
    await lock_owner_account(tx, owner)
    await verify_owner_token(tx, owner, hash_relay_secret(bearer_token(context.request.headers.get("authorization"))))
