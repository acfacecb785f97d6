"""The console's table of contents."""

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from pabal.console import (
    audit,
    chat,
    events,
    health,
    letters,
    live,
    me,
    mending,
    overview,
    services,
    sessions,
    trace,
    you,
)
from pabal.console.gate import Deed, Look, opened, own
from pabal.console.notices import addresses, log, rules, templates
from pabal.console.pages import note, turned
from pabal.console.portal import pages as portal
from pabal.console.relay import accounts, conversations, messages, room
from pabal.operators.operators import Role
from pabal.wiring import Hub

PAGES: tuple[Look | Deed, ...] = (
    *overview.PAGES,
    *health.PAGES,
    *log.PAGES,
    *templates.PAGES,
    *rules.PAGES,
    *addresses.PAGES,
    *events.PAGES,
    *letters.PAGES,
    *mending.PAGES,
    *trace.PAGES,
    *services.PAGES,
    *audit.PAGES,
    *you.PAGES,
    *room.PAGES,
    *accounts.PAGES,
    *conversations.PAGES,
    *messages.PAGES,
    *live.PAGES,
    Deed("/console/logout", sessions.leave, by=Role.VIEWER),
)


def routes(hub: Hub) -> list[BaseRoute]:
    return [
        Route("/", home),
        Route("/console/", home),
        *(page.route(hub) for page in PAGES),
        Route("/console/login", opened(hub, sessions.show), methods=["GET"]),
        Route("/console/login", opened(hub, sessions.enter), methods=["POST"]),
        Route("/console/language", opened(hub, language), methods=["POST"]),
        Mount("/console/static", StaticFiles(packages=[("pabal.console", "static")])),
        Route("/console/{rest:path}", missing),
        Route("/me", opened(hub, me.show, me.note), methods=["GET"]),
        Route("/me", opened(hub, me.enter, me.note), methods=["POST"]),
        Route("/me/inbox", own(hub, me.inbox), methods=["GET"]),
        Route("/me/toasts/{id}/{mark}", own(hub, me.mark), methods=["POST"]),
        Route("/me/read", own(hub, me.read_all), methods=["POST"]),
        Route("/me/preferences", own(hub, me.save), methods=["POST"]),
        Route("/me/language", own(hub, me.language), methods=["POST"]),
        Route("/me/leave", own(hub, me.leave), methods=["POST"]),
        Route("/me/{rest:path}", me.missing),
        *portal.routes(hub),
        *chat.routes(hub),
    ]


async def home(_request: Request) -> Response:
    return RedirectResponse("/console", 307)


async def missing(request: Request) -> Response:
    return note(request, "no such page", 404)


async def language(hub: Hub, request: Request) -> Response:
    return turned(hub, request, sessions.HOME) if sessions.ours(hub, request) else note(request, "stale form", 403)
