"""The console's table of contents."""

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from pabal.api.errors import headers_for
from pabal.console import overview, sessions
from pabal.console.pages import note
from pabal.console.texts import texts_for
from pabal.core.errors import Unavailable
from pabal.operators.operators import Session
from pabal.wiring import Hub

Page = Callable[[Hub, Request, Session], Awaitable[Response]]
Answer = Callable[[Request], Awaitable[Response]]
OpenPage = Callable[[Hub, Request], Awaitable[Response]]


def routes(hub: Hub) -> list[BaseRoute]:
    return [
        Route("/", home),
        Route("/console", closed(hub, overview.show)),
        Route("/console/", home),
        Route("/console/lanes", closed(hub, overview.lanes)),
        Route("/console/login", opened(hub, sessions.show), methods=["GET"]),
        Route("/console/login", opened(hub, sessions.enter), methods=["POST"]),
        Route("/console/logout", closed(hub, sessions.leave), methods=["POST"]),
        Route("/console/language", language, methods=["POST"]),
        Mount("/console/static", StaticFiles(packages=[("pabal.console", "static")])),
        Route("/console/{rest:path}", missing),
    ]


async def home(_request: Request) -> Response:
    return RedirectResponse("/console", 307)


async def missing(request: Request) -> Response:
    return note(request, "no such page", 404)


async def language(request: Request) -> Response:
    """Turn the console to the other language."""
    answer = RedirectResponse("/console", 303)
    answer.set_cookie("pabal_language", texts_for(request).other, max_age=31536000, path="/console", samesite="lax")
    return answer


def closed(hub: Hub, page: Page) -> Answer:
    """A page for operators: everybody else is shown the way to the sign-in."""

    async def answer(request: Request) -> Response:
        session = await sessions.who(hub, request)
        if session is None:
            return RedirectResponse("/console/login", 303)
        return await page(hub, request, session)

    return for_people(answer)


def opened(hub: Hub, page: OpenPage) -> Answer:
    async def answer(request: Request) -> Response:
        return await page(hub, request)

    return for_people(answer)


def for_people(page: Answer) -> Answer:
    """When the database is away a person gets a page, not a problem in JSON."""

    async def answer(request: Request) -> Response:
        try:
            return await page(request)
        except Unavailable as error:
            away = note(request, "database away", 503)
            away.headers.update(headers_for(error))
            return away

    return answer
