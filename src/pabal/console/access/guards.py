"""Who may open a page of the console or run one of its actions, and the error pages for everything else."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from starlette.datastructures import ImmutableMultiDict
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from pabal.console.access.csrf import is_trusted_form
from pabal.console.access.login import find_current_session, renew_operator_cookie
from pabal.console.me.person import person_error_page, person_or_error_page
from pabal.console.pages import error_page, read_form, request_context, set_flash_cookie
from pabal.core.actor import Actor
from pabal.core.errors import ForeignOrigin, NotFound, RequestError, UnknownHost
from pabal.core.log import get_logger
from pabal.hub import Hub
from pabal.notifications.people.tokens import Person
from pabal.operators.operators import OperatorSession, Role
from pabal.web.errors import RETRYABLE_ERRORS, error_headers, error_status
from pabal.web.middleware import loggable_path
from pabal.web.origin import refuse_foreign_origin, refuse_unknown_host

log = get_logger()

Form = ImmutableMultiDict[str, str]
EMPTY_FORM: Form = ImmutableMultiDict()
RequestHandler = Callable[[Request], Awaitable[Response]]
PageHandler = Callable[[Hub, Request, OperatorSession], Awaitable[Response]]
ActionHandler = Callable[[Hub, Request, OperatorSession, Form], Awaitable[Response]]
PublicHandler = Callable[[Hub, Request], Awaitable[Response]]
PersonHandler = Callable[[Hub, Request, Person], Awaitable[Response]]


class ErrorPageRenderer(Protocol):
    """Renders an error page in the layout and tone of its visitors. `error` is the last part of a text id."""

    def __call__(self, request: Request, error: str, status: int, detail: str = "") -> Response: ...


@dataclass(frozen=True, slots=True)
class Page:
    """A page that any signed-in operator may read."""

    path: str
    handler: PageHandler

    def route(self, hub: Hub) -> BaseRoute:
        return Route(
            self.path, with_cookie_renewal(hub, with_error_pages(hub, self._guarded_handler(hub))), methods=["GET"]
        )

    def _guarded_handler(self, hub: Hub) -> RequestHandler:
        async def handle(request: Request) -> Response:
            session = await find_current_session(hub, request)
            if session is None:
                return RedirectResponse("/console/login", 303)
            return await self.handler(hub, request, session)

        return handle


@dataclass(frozen=True, slots=True)
class Action:
    """A form that an operator with `role` may submit."""

    path: str
    handler: ActionHandler
    role: Role = Role.ADMIN

    def route(self, hub: Hub) -> BaseRoute:
        return Route(
            self.path, with_cookie_renewal(hub, with_error_pages(hub, self._guarded_handler(hub))), methods=["POST"]
        )

    def _guarded_handler(self, hub: Hub) -> RequestHandler:
        async def handle(request: Request) -> Response:
            session = await find_current_session(hub, request)
            if session is None:
                return RedirectResponse("/console/login", 303)
            fields = await read_form(request)
            if not is_trusted_form(hub, request, fields, session.csrf.hex()):
                return error_page(request, "form_expired", 403)
            if self.role == Role.ADMIN and session.role != Role.ADMIN:
                return error_page(request, "admin_only", 403)
            return set_flash_cookie(hub, await self.handler(hub, request, session, fields))

        return handle


def with_cookie_renewal(hub: Hub, handler: RequestHandler) -> RequestHandler:
    """Send the browser its new session cookie with the response, whenever the session was renewed."""

    async def handle(request: Request) -> Response:
        response = await handler(request)
        renew_operator_cookie(hub, request, response)
        return response

    return handle


def public_handler(hub: Hub, handler: PublicHandler, render_error: ErrorPageRenderer = error_page) -> RequestHandler:
    async def handle(request: Request) -> Response:
        return await handler(hub, request)

    return with_error_pages(hub, handle, render_error)


def person_handler(hub: Hub, handler: PersonHandler) -> RequestHandler:
    """A page for the person it is about."""

    async def handle(request: Request) -> Response:
        visitor = await person_or_error_page(hub, request)
        return await handler(hub, request, visitor) if isinstance(visitor, Person) else visitor

    return with_error_pages(hub, handle, person_error_page)


def with_error_pages(hub: Hub, handler: RequestHandler, render_error: ErrorPageRenderer = error_page) -> RequestHandler:
    """Refuse requests of other sites, and turn errors into pages, as the API turns them into JSON."""

    async def handle(request: Request) -> Response:
        try:
            refuse_unknown_host(request, hub)
            refuse_foreign_origin(request, hub)
            return await handler(request)
        except RETRYABLE_ERRORS as error:
            response = render_error(request, "database_unavailable", 503)
            response.headers.update(error_headers(error))
            return response
        except NotFound:
            return render_error(request, "not_found", 404)
        except (ForeignOrigin, UnknownHost) as error:
            return render_error(request, error.code, 403)
        except RequestError as error:
            return render_error(request, "rejected", error_status(type(error)), detail=str(error))
        except ClientDisconnect:
            raise
        except Exception:  # the page shows only the request id, by which the log has the details
            log.exception("request failed", method=request.method, path=loggable_path(request.scope))
            return render_error(request, "internal", 500, detail=request_context(request).id)

    return handle


def operator_actor(request: Request, session: OperatorSession) -> Actor:
    """Return the operator as an actor of the audit log."""
    return request_context(request).actor(f"operator:{session.name}")
