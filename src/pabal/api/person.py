"""Who comes to a door of their own: the one person a token is for, or a browser's cookie.

A cookie comes along by itself, whoever's page sent the request. It is never sent from another site (SameSite), and
with it nothing is changed unless the request says that it comes from a page of ours.
"""

from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from pabal.api.cookie import give
from pabal.api.credentials import bearer
from pabal.core.errors import Forbidden, Unauthenticated
from pabal.notifications.people import COOKIE_LIFE, PREFIX, Person, person_of
from pabal.wiring import Hub

COOKIE = "pabal_person"
SAFE = frozenset({"GET", "HEAD"})


async def person(request: Request, hub: Hub) -> Person:
    """Find whoever shows a person's token in the Authorization header, or brings the cookie it was swapped for."""
    header, cookie = request.headers.get("authorization"), request.cookies.get(COOKIE)
    if header is None and cookie:
        if request.method not in SAFE and not from_here(request, hub):
            raise Forbidden("with a cookie this is only possible from a page of the hub itself")
        async with hub.autocommit() as tx:
            return await person_of(tx, cookie, "cookie")
    if header is None:
        raise Unauthenticated("a person's token is needed: Authorization: Bearer …")
    async with hub.autocommit() as tx:
        return await person_of(tx, bearer(header), "link")


def is_a_persons(request: Request) -> bool:
    """Whether this is a person's way to come rather than a service's."""
    header = request.headers.get("authorization")
    return COOKIE in request.cookies if header is None else header.partition(" ")[2].strip().startswith(PREFIX)


def from_here(request: Request, hub: Hub) -> bool:
    """Whether the browser says that a page of ours sent this. One that says nothing is not believed."""
    origin = request.headers.get("origin", "null")
    if origin == "null":
        return request.headers.get("sec-fetch-site") == "same-origin"
    public = urlsplit(hub.settings.public_url or "")
    schemes = ("https",) if public.scheme == "https" else ("http", "https")
    homes = filter(None, (request.headers.get("host"), public.netloc))
    return origin in {f"{scheme}://{home}" for home in homes for scheme in schemes}


def give_cookie(hub: Hub, answer: Response, token: str) -> None:
    give(hub, answer, COOKIE, token, seconds=int(COOKIE_LIFE.total_seconds()), path="/")


def take_cookie(answer: Response) -> None:
    answer.delete_cookie(COOKIE, path="/")
