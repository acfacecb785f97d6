"""Authentication: bearer tokens, basic credentials, and the cookie of a person."""

import base64
from urllib.parse import unquote_plus

from starlette.requests import Request
from starlette.responses import Response

from pabal.core.errors import Forbidden, InvalidClient, InvalidToken, Unauthenticated
from pabal.db.tx import Tx
from pabal.hub import Hub
from pabal.notifications.people.stream_tickets import use_stream_ticket
from pabal.notifications.people.tokens import PERSON_COOKIE_LIFETIME, PERSON_TOKEN_PREFIX, Person, find_person_by_token
from pabal.relay.auth import (
    AccountOwner,
    RelayPrincipal,
    authenticate_relay_token,
    hash_relay_secret,
    lock_owner_account,
    verify_owner_token,
)
from pabal.web.cookies import read_cookie
from pabal.web.origin import SAFE_METHODS, allowed_page_origin, is_same_origin, refuse_unknown_host
from pabal.web.request import RequestContext, parse_query_pairs

MAX_AUTHORIZATION_LENGTH = 4096
"""Characters of an Authorization header. Our access tokens have about 1,000."""


def bearer_token(header: str | None) -> str:
    """The token of an `Authorization: Bearer` header (RFC 6750)."""
    scheme, _, token = (header or "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise Unauthenticated("Missing access token. Send it as `Authorization: Bearer <token>`.")
    if len(token) > MAX_AUTHORIZATION_LENGTH:
        raise InvalidToken(f"the Authorization header is longer than {MAX_AUTHORIZATION_LENGTH} characters")
    return token.strip()


def basic_credentials(header: str | None) -> tuple[str, str] | None:
    """Name and secret of a `Basic` header (RFC 7617), each form-encoded as in RFC 6749; None without a header."""
    if not header:
        return None
    if len(header) > MAX_AUTHORIZATION_LENGTH:
        raise InvalidClient
    scheme, _, credentials = header.partition(" ")
    try:
        text = base64.b64decode(credentials.strip(), validate=True).decode()
    except ValueError:  # not ASCII, not base64, or not UTF-8 once decoded
        raise InvalidClient from None
    name, colon, secret = text.partition(":")
    if scheme.lower() != "basic" or not colon:
        raise InvalidClient
    return unquote_plus(name), unquote_plus(secret)


def set_secure_cookie(hub: Hub, response: Response, name: str, value: str, *, max_age: int, path: str) -> None:
    secure = (hub.settings.public_url or "").startswith("https://")
    response.set_cookie(name, value, max_age=max_age, path=path, httponly=True, secure=secure, samesite="lax")


PERSON_COOKIE, PERSON_COOKIE_PATH = "pabal_me", "/me"
"""Browsers send the cookie to the person's page only, which finds everything it needs under this path."""
FORMER_PERSON_COOKIE = "pabal_person"
"""Was sent with every request. It is not read any more, and deleted with the next sign-in or sign-out."""


async def authenticate_person(request: Request, hub: Hub, *, accepts_ticket: bool = False) -> Person:
    """The person whose token is in the Authorization header, whose ticket is in the query, or whose cookie it is."""
    header, cookie = request.headers.get("authorization"), read_cookie(request, PERSON_COOKIE)
    if header is None and accepts_ticket and (ticket := dict(parse_query_pairs(request)).get("ticket")):
        async with hub.transaction() as tx:
            return await use_stream_ticket(tx, ticket, allowed_page_origin(request, hub))
    if header is None and cookie:
        refuse_unknown_host(request, hub)
        if request.method not in SAFE_METHODS and not is_same_origin(request, hub):
            raise Forbidden("Requests with a cookie must come from a page of this hub.")
        async with hub.autocommit() as tx:
            return await find_person_by_token(tx, cookie, "cookie")
    if header is None:
        raise Unauthenticated("Missing person token. Send it as `Authorization: Bearer <token>`.")
    async with hub.autocommit() as tx:
        return await find_person_by_token(tx, bearer_token(header), "link")


def has_person_credentials(request: Request) -> bool:
    """Whether the request carries a person's credentials rather than a service's."""
    header = request.headers.get("authorization")
    return (
        bool(read_cookie(request, PERSON_COOKIE))
        if header is None
        else header.partition(" ")[2].strip().startswith(PERSON_TOKEN_PREFIX)
    )


def set_person_cookie(hub: Hub, response: Response, token: str) -> None:
    lifetime = int(PERSON_COOKIE_LIFETIME.total_seconds())
    set_secure_cookie(hub, response, PERSON_COOKIE, token, max_age=lifetime, path=PERSON_COOKIE_PATH)
    response.delete_cookie(FORMER_PERSON_COOKIE, path="/")


def clear_person_cookie(response: Response) -> None:
    response.delete_cookie(PERSON_COOKIE, path=PERSON_COOKIE_PATH)
    response.delete_cookie(FORMER_PERSON_COOKIE, path="/")


async def authenticate_relay(request: Request, hub: Hub) -> RelayPrincipal:
    """The holder of the session token or relay token in the Authorization header."""
    token = bearer_token(request.headers.get("authorization"))
    async with hub.autocommit() as tx:
        return await authenticate_relay_token(tx, token)


async def verify_owner_in_transaction(tx: Tx, context: RequestContext, owner: AccountOwner) -> None:
    """Check the owner's token inside the transaction that acts for them, so it cannot be revoked in between."""
    await lock_owner_account(tx, owner)
    await verify_owner_token(tx, owner, hash_relay_secret(bearer_token(context.request.headers.get("authorization"))))
