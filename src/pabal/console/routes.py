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
from pabal.console.gate import Action, Page, person_handler, public_handler
from pabal.console.notices import addresses, log, rules, templates
from pabal.console.pages import error_page, language_redirect
from pabal.console.portal import pages as portal
from pabal.console.relay import accounts, conversations, messages, room
from pabal.operators.operators import Role
from pabal.wiring import Hub

PAGES: tuple[Page | Action, ...] = (
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
    Action("/console/logout", sessions.sign_out_action, role=Role.VIEWER),
)


def console_routes(hub: Hub) -> list[BaseRoute]:
    return [
        Route("/", redirect_to_console),
        Route("/console/", redirect_to_console),
        *(page.route(hub) for page in PAGES),
        Route("/console/login", public_handler(hub, sessions.login_page), methods=["GET"]),
        Route("/console/login", public_handler(hub, sessions.sign_in_action), methods=["POST"]),
        Route("/console/language", public_handler(hub, switch_language_action), methods=["POST"]),
        Mount("/console/static", StaticFiles(packages=[("pabal.console", "static")])),
        Route("/console/{rest:path}", not_found_page),
        Route("/me", public_handler(hub, me.person_page, me.person_error_page), methods=["GET"]),
        Route("/me", public_handler(hub, me.open_person_link_action, me.person_error_page), methods=["POST"]),
        Route("/me/inbox", person_handler(hub, me.person_inbox_page), methods=["GET"]),
        Route("/me/toasts/{id}/{mark}", person_handler(hub, me.mark_toast_action), methods=["POST"]),
        Route("/me/read", person_handler(hub, me.read_all_toasts_action), methods=["POST"]),
        Route("/me/preferences", person_handler(hub, me.save_preferences_action), methods=["POST"]),
        Route("/me/language", person_handler(hub, me.switch_person_language_action), methods=["POST"]),
        Route("/me/leave", person_handler(hub, me.sign_out_person_action), methods=["POST"]),
        Route("/me/{rest:path}", me.person_not_found_page),
        *portal.portal_routes(hub),
        *chat.chat_routes(hub),
    ]


async def redirect_to_console(_request: Request) -> Response:
    return RedirectResponse("/console", 307)


async def not_found_page(request: Request) -> Response:
    return error_page(request, "no such page", 404)


async def switch_language_action(hub: Hub, request: Request) -> Response:
    return (
        language_redirect(hub, request, sessions.CONSOLE_PATH)
        if sessions.is_own_form(hub, request)
        else error_page(request, "stale form", 403)
    )
