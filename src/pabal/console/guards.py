"""The console's gate: who may see a page, who may do something there, and what they are told when they may not."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from starlette.datastructures import ImmutableMultiDict
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from pabal.console.login import equal_in_constant_time, find_current_session, is_own_form, renew_operator_cookie
from pabal.console.pages import error_page, read_form, set_flash_cookie
from pabal.console.person import person_error_page, person_or_error_page
from pabal.core.actor import Actor
from pabal.core.errors import NotFound, RequestError
from pabal.core.log import get_logger
from pabal.hub import Hub
from pabal.notifications.people.tokens import Person
from pabal.operators.operators import OperatorSession, Role
from pabal.web.errors import RETRYABLE_ERRORS, error_headers, error_status
from pabal.web.middleware import loggable_path
from pabal.web.request import RequestContext

log = get_logger()

Form = ImmutableMultiDict[str, str]
RequestHandler = Callable[[Request], Awaitable[Response]]
PageHandler = Callable[[Hub, Request, OperatorSession], Awaitable[Response]]
ActionHandler = Callable[[Hub, Request, OperatorSession, Form], Awaitable[Response]]
PublicHandler = Callable[[Hub, Request], Awaitable[Response]]
PersonHandler = Callable[[Hub, Request, Person], Awaitable[Response]]


class ErrorPageRenderer(Protocol):
    """How a page that only says something is made, in the dress of those it is for."""

    def __call__(self, request: Request, text_id: str, status: int, detail: str = "") -> Response: ...


@dataclass(frozen=True, slots=True)
class Page:
    """A page for operators: to look at."""

    path: str
    handler: PageHandler

    def route(self, hub: Hub) -> BaseRoute:
        return Route(self.path, with_cookie_renewal(hub, with_error_pages(self._guarded_handler(hub))), methods=["GET"])

    def _guarded_handler(self, hub: Hub) -> RequestHandler:
        async def answer(request: Request) -> Response:
            session = await find_current_session(hub, request)
            return (
                RedirectResponse("/console/login", 303)
                if session is None
                else await self.handler(hub, request, session)
            )

        return answer


@dataclass(frozen=True, slots=True)
class Action:
    """Something an admin does from a page: a form of ours, sent from a page of ours."""

    path: str
    handler: ActionHandler
    role: Role = Role.ADMIN

    def route(self, hub: Hub) -> BaseRoute:
        return Route(
            self.path, with_cookie_renewal(hub, with_error_pages(self._guarded_handler(hub))), methods=["POST"]
        )

    def _guarded_handler(self, hub: Hub) -> RequestHandler:
        async def answer(request: Request) -> Response:
            session = await find_current_session(hub, request)
            if session is None:
                return RedirectResponse("/console/login", 303)
            given = await read_form(request)
            if not is_own_form(hub, request) or not equal_in_constant_time(given.get("csrf", ""), session.csrf.hex()):
                return error_page(request, "stale form", 403)
            if self.role == Role.ADMIN and session.role != Role.ADMIN:
                return error_page(request, "admins only", 403)
            return set_flash_cookie(hub, await self.handler(hub, request, session, given))

        return answer


def with_cookie_renewal(hub: Hub, handler: RequestHandler) -> RequestHandler:
    """A page of a session whose cookie may have changed: the browser is given the new one with whatever it is told."""

    async def answer(request: Request) -> Response:
        made = await handler(request)
        renew_operator_cookie(hub, request, made)
        return made

    return answer


def public_handler(hub: Hub, handler: PublicHandler, render_error: ErrorPageRenderer = error_page) -> RequestHandler:
    async def answer(request: Request) -> Response:
        return await handler(hub, request)

    return with_error_pages(answer, render_error)


def person_handler(hub: Hub, handler: PersonHandler) -> RequestHandler:
    """A page for the person it is about."""

    async def answer(request: Request) -> Response:
        visitor = await person_or_error_page(hub, request)
        return await handler(hub, request, visitor) if isinstance(visitor, Person) else visitor

    return with_error_pages(answer, person_error_page)


def with_error_pages(handler: RequestHandler, render_error: ErrorPageRenderer = error_page) -> RequestHandler:
    """What a program would get as a problem in JSON, a person gets as a page."""

    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except RETRYABLE_ERRORS as error:
            away = render_error(request, "database away", 503)
            away.headers.update(error_headers(error))
            return away
        except NotFound:
            return render_error(request, "no such page", 404)
        except RequestError as error:
            return render_error(request, "refused", error_status(type(error)), detail=str(error))
        except ClientDisconnect:
            raise
        except Exception:  # nobody sees our insides: only where whoever runs the hub finds them
            visit: RequestContext = request.state.visit
            log.exception("request failed", method=request.method, path=loggable_path(request.scope))
            return render_error(request, "failed inside", 500, detail=visit.id)

    return answer


def operator_actor(request: Request, session: OperatorSession) -> Actor:
    """The operator, as the audit log names them."""
    visit: RequestContext = request.state.visit
    return visit.actor(f"operator:{session.name}")
