"""Guards for the pages of bot owners (/portal) and of chat users (/chat), each with a cookie of its own.

Browsers attach the cookie to requests of any site. An action therefore requires a form that names our origin and
carries the CSRF token of the cookie.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, Protocol, TypeVar

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from pabal.console.access.csrf import is_trusted_form
from pabal.console.access.guards import Form, RequestHandler, with_error_pages
from pabal.console.live import refresh_stream
from pabal.console.pages import confirm_context, language_redirect, read_form, render_page, set_flash_cookie
from pabal.core.errors import Unauthenticated
from pabal.hub import Hub
from pabal.web.auth import set_secure_cookie
from pabal.web.origin import is_same_origin
from pabal.web.request import mark_authenticated


class CookieVisitor(Protocol):
    @property
    def csrf_token(self) -> str: ...


VisitorT = TypeVar("VisitorT", bound=CookieVisitor)


@dataclass(frozen=True, slots=True)
class CookieGuard(Generic[VisitorT]):
    """The pages under `base_path`, for visitors with the cookie `cookie_name`.

    Open pages refresh every `refresh_interval` and never on a notification: notifications are not per visitor, so their
    timing would reveal the activity of others.
    """

    base_path: str
    cookie_name: str
    find_visitor: Callable[[Hub, Request], Awaitable[VisitorT]]
    unauthenticated_page: Callable[[Request], Response]
    refresh_interval: timedelta

    async def authenticate(self, hub: Hub, request: Request) -> VisitorT:
        visitor = await self.find_visitor(hub, request)
        mark_authenticated(request)
        return visitor

    def page_handler(
        self, hub: Hub, handler: Callable[[Hub, Request, VisitorT], Awaitable[Response]]
    ) -> RequestHandler:
        """Wrap a page for authenticated visitors."""

        async def handle(request: Request) -> Response:
            try:
                visitor = await self.authenticate(hub, request)
            except Unauthenticated:
                return self.unauthenticated_page(request)
            return await handler(hub, request, visitor)

        return with_error_pages(hub, handle, self.error_page)

    def action_handler(
        self, hub: Hub, handler: Callable[[Hub, Request, VisitorT, Form], Awaitable[Response]]
    ) -> RequestHandler:
        """Wrap a form handler for authenticated visitors."""

        async def handle(request: Request) -> Response:
            try:
                visitor = await self.authenticate(hub, request)
                fields = await read_form(request)
                if not is_trusted_form(hub, request, fields, visitor.csrf_token, require_origin=True):
                    return self.error_page(request, "form_expired", 403)
                return set_flash_cookie(hub, await handler(hub, request, visitor, fields))
            except Unauthenticated:  # the action may find that access was revoked in the meantime
                return self.unauthenticated_page(request)

        return with_error_pages(hub, handle, self.error_page)

    def public_handler(self, hub: Hub, handler: Callable[[Hub, Request], Awaitable[Response]]) -> RequestHandler:
        """Wrap a page that authenticates visitors itself, if it needs to."""

        async def handle(request: Request) -> Response:
            try:
                return await handler(hub, request)
            except Unauthenticated:
                return self.unauthenticated_page(request)

        return with_error_pages(hub, handle, self.error_page)

    def render_page(
        self, request: Request, template_name: str, *, status: int = 200, csrf_token: str = "", **context: Any
    ) -> HTMLResponse:
        response = render_page(
            request, template_name, status=status, base_path=self.base_path, csrf_token=csrf_token, **context
        )
        # With "no-referrer" browsers send "Origin: null" for forms, and the origin check would fail.
        response.headers["referrer-policy"] = "same-origin"
        return response

    def error_page(self, request: Request, error: str, status: int, detail: str = "") -> HTMLResponse:
        """Render a page with one of the `people.error` texts."""
        return self.render_page(request, "cookie_guard/error.html", status=status, error=error, detail=detail)

    def confirm_page(
        self,
        request: Request,
        visitor: CookieVisitor,
        *,
        text_id: str,
        count: int,
        fields: Mapping[str, str],
        **values: str,
    ) -> HTMLResponse:
        """Ask before an action, as `pages.confirm_page` does."""
        context = confirm_context(request, visitor.csrf_token, text_id, count, fields, **values)
        return self.render_page(
            request, "confirm.html", layout="cookie_guard/base.html", return_url=self.base_path, **context
        )

    async def live_page(self, hub: Hub, request: Request, visitor: VisitorT) -> Response:
        """Stream refreshes for as long as the visitor is authenticated."""

        async def is_authenticated() -> bool:
            try:
                await self.authenticate(hub, request)
            except Unauthenticated:
                return False
            return True

        return refresh_stream(hub, request, is_authenticated, visitor.csrf_token, max_interval=self.refresh_interval)

    async def not_found_page(self, request: Request) -> Response:
        return self.error_page(request, "not_found", 404)

    async def switch_language_action(self, hub: Hub, request: Request) -> Response:
        if not is_same_origin(request, hub):
            return self.error_page(request, "form_expired", 403)
        return language_redirect(hub, request, self.base_path)

    def sign_in_redirect(self, hub: Hub, cookie: str, lifetime: timedelta) -> Response:
        """Redirect to the first page with the cookie set, for the pages under `base_path` only."""
        response = RedirectResponse(self.base_path, 303)
        set_secure_cookie(
            hub, response, self.cookie_name, cookie, max_age=int(lifetime.total_seconds()), path=self.base_path
        )
        return response

    def delete_cookie(self, response: Response) -> Response:
        response.delete_cookie(self.cookie_name, path=self.base_path)
        return response
