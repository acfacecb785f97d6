"""The console's table of contents."""

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from pabal.console import overview, sessions
from pabal.console.texts import texts_for
from pabal.operators.operators import Session
from pabal.wiring import Hub

Page = Callable[[Hub, Request, Session], Awaitable[Response]]
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
    ]


async def home(_request: Request) -> Response:
    return RedirectResponse("/console", 307)


async def language(request: Request) -> Response:
    """Turn the console to the other language and go back to where one was."""
    answer = RedirectResponse("/console", 303)
    answer.set_cookie("pabal_language", texts_for(request).other, max_age=31536000, path="/console", samesite="lax")
    return answer


def closed(hub: Hub, page: Page) -> Callable[[Request], Awaitable[Response]]:
    """A page for operators: everybody else is shown the way to the sign-in."""

    async def answer(request: Request) -> Response:
        session = await sessions.who(hub, request)
        if session is None:
            return RedirectResponse("/console/login", 303)
        return await page(hub, request, session)

    return answer


def opened(hub: Hub, page: OpenPage) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        return await page(hub, request)

    return answer
