"""Who comes to a door of their own: the one person a token is for, or a browser's cookie.

A cookie comes along by itself, whoever's page sent the request. It is never sent from another site (SameSite), and
with it nothing is changed unless the request says that it comes from a page of ours.
"""

from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from pabal.api.cookie import set_secure_cookie
from pabal.api.credentials import bearer_token
from pabal.core.errors import Forbidden, Unauthenticated
from pabal.notifications.people import PERSON_COOKIE_LIFETIME, PERSON_TOKEN_PREFIX, Person, find_person_by_token
from pabal.wiring import Hub

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
