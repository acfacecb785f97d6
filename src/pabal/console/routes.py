"""Routes of the console, the pages of people (/me, /chat) and the portal."""

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from pabal.console import audit, dead_letters, events, first_run, health, live, overview
from pabal.console.access import login, operators, profile
from pabal.console.access.csrf import is_not_cross_site
from pabal.console.access.guards import Action, Page, person_handler, public_handler
from pabal.console.access.login import login_page, sign_in_action, sign_out_action
from pabal.console.chat import chat_routes
from pabal.console.me.person import (
    mark_toast_action,
    open_person_link_action,
    person_error_page,
    person_inbox_page,
    person_not_found_page,
    person_page,
    read_all_toasts_action,
    save_preferences_action,
    sign_out_person_action,
    switch_person_language_action,
)
from pabal.console.me.person_links import (
    confirm_link_action,
    confirm_link_page,
    request_link_action,
    unlink_own_account_action,
)
from pabal.console.notifications import addresses, notifications, person, rules, templates
from pabal.console.pages import error_page, language_redirect
from pabal.console.portal.pages import portal_routes
from pabal.console.relay import accounts, conversations, messages
from pabal.console.services import credentials, services, subscriptions
from pabal.console.trace import page as trace_page
from pabal.hub import Hub
from pabal.notifications.people.links import LINK_PAGE_PATH
from pabal.operators.operators import Role
from pabal.web.public_files import PublicFiles

PAGES: tuple[Page | Action, ...] = (
    *overview.PAGES,
    *first_run.PAGES,
    *health.PAGES,
    *notifications.PAGES,
    *templates.PAGES,
    *rules.PAGES,
    *addresses.PAGES,
    *person.PAGES,
    *events.PAGES,
    *dead_letters.PAGES,
    *dead_letters.DEAD_LETTER_ACTIONS,
    *trace_page.PAGES,
    *services.PAGES,
    *credentials.PAGES,
    *subscriptions.PAGES,
    *audit.PAGES,
    *profile.PAGES,
    *operators.PAGES,
    *accounts.RELAY_PAGES,
    *accounts.PAGES,
    *conversations.PAGES,
    *messages.PAGES,
    *live.PAGES,
    Action("/console/logout", sign_out_action, role=Role.VIEWER),
)


def console_routes(hub: Hub) -> list[BaseRoute]:
    return [
        Route("/", redirect_to_console),
        Route("/console/", redirect_to_console),
        *(page.route(hub) for page in PAGES),
        Route("/console/login", public_handler(hub, login_page), methods=["GET"]),
        Route("/console/login", public_handler(hub, sign_in_action), methods=["POST"]),
        Route("/console/language", public_handler(hub, switch_language_action), methods=["POST"]),
        Mount("/console/static", StaticFiles(packages=[("pabal.console", "static")])),
        Mount("/static", PublicFiles(packages=[("pabal.web", "static")])),
        Route("/console/{rest:path}", not_found_page),
        Route("/me", public_handler(hub, person_page, person_error_page), methods=["GET"]),
        Route("/me", public_handler(hub, open_person_link_action, person_error_page), methods=["POST"]),
        Route("/me/inbox", person_handler(hub, person_inbox_page), methods=["GET"]),
        Route("/me/toasts/{id}/{mark}", person_handler(hub, mark_toast_action), methods=["POST"]),
        Route("/me/read", person_handler(hub, read_all_toasts_action), methods=["POST"]),
        Route("/me/preferences", person_handler(hub, save_preferences_action), methods=["POST"]),
        Route("/me/language", person_handler(hub, switch_person_language_action), methods=["POST"]),
        Route("/me/link", person_handler(hub, request_link_action), methods=["POST"]),
        Route(LINK_PAGE_PATH, person_handler(hub, confirm_link_page), methods=["GET"]),
        Route(LINK_PAGE_PATH, person_handler(hub, confirm_link_action), methods=["POST"]),
        Route("/me/unlink", person_handler(hub, unlink_own_account_action), methods=["POST"]),
        Route("/me/leave", person_handler(hub, sign_out_person_action), methods=["POST"]),
        Route("/me/{rest:path}", person_not_found_page),
        *portal_routes(hub),
        *chat_routes(hub),
    ]


async def redirect_to_console(_request: Request) -> Response:
    return RedirectResponse("/console", 307)


async def not_found_page(request: Request) -> Response:
    return error_page(request, "not_found", 404)


async def switch_language_action(hub: Hub, request: Request) -> Response:
    if not is_not_cross_site(hub, request):
        return error_page(request, "form_expired", 403)
    return language_redirect(hub, request, login.CONSOLE_PATH)
