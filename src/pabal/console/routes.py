"""The console's table of contents."""

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from pabal.api.errors import headers_for
from pabal.console import me, overview, sessions
from pabal.console.pages import note
from pabal.console.texts import texts_for
from pabal.core.errors import Unavailable
from pabal.notifications.people import Person
from pabal.operators.operators import Session
from pabal.wiring import Hub

Page = Callable[[Hub, Request, Session], Awaitable[Response]]
Answer = Callable[[Request], Awaitable[Response]]
OpenPage = Callable[[Hub, Request], Awaitable[Response]]
Note = Callable[[Request, str, int], Response]
OwnPage = Callable[[Hub, Request, Person], Awaitable[Response]]


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
        Route("/me", opened(hub, me.show, me.note), methods=["GET"]),
        Route("/me/inbox", own(hub, me.inbox), methods=["GET"]),
        Route("/me/toasts/{id}/{mark}", own(hub, me.mark), methods=["POST"]),
        Route("/me/read", own(hub, me.read_all), methods=["POST"]),
        Route("/me/preferences", own(hub, me.save), methods=["POST"]),
        Route("/me/language", own(hub, me.language), methods=["POST"]),
        Route("/me/leave", own(hub, me.leave), methods=["POST"]),
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


def opened(hub: Hub, page: OpenPage, says: Note = note) -> Answer:
    async def answer(request: Request) -> Response:
        return await page(hub, request)

    return for_people(answer, says)


def own(hub: Hub, page: OwnPage) -> Answer:
    """A page for the person it is about."""

    async def answer(request: Request) -> Response:
        visitor = await me.known(hub, request)
        return await page(hub, request, visitor) if isinstance(visitor, Person) else visitor

    return for_people(answer, me.note)


def for_people(page: Answer, says: Note = note) -> Answer:
    """When the database is away a person gets a page, not a problem in JSON."""

    async def answer(request: Request) -> Response:
        try:
            return await page(request)
        except Unavailable as error:
            away = says(request, "database away", 503)
            away.headers.update(headers_for(error))
            return away

    return answer
