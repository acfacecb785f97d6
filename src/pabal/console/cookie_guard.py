"""The small gates beside the console's: pages for a bot's owner and for a chat's user, who come with a cookie each.

A cookie comes along by itself, whoever's page sent the request. Nothing is done with it unless the browser says that
the form is from a page of ours, and the form brings the stamp that only such a page could have put there.
"""

import hashlib
import hmac
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, Protocol, TypeVar

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from pabal.console.guards import Form, RequestHandler, with_error_pages
from pabal.console.live import refresh_stream
from pabal.console.pages import confirm_context, language_redirect, read_form, render_page, set_flash_cookie
from pabal.core.errors import Unauthenticated
from pabal.hub import Hub
from pabal.web.auth import is_same_origin, set_secure_cookie


class CookieVisitor(Protocol):
    @property
    def csrf_token(self) -> str: ...


VisitorT = TypeVar("VisitorT", bound=CookieVisitor)


@dataclass(frozen=True, slots=True)
class CookieGuard(Generic[VisitorT]):
    """The pages under `home`: who comes through with which cookie, and what those are told who do not.

    An open page looks `every` so often, by the clock alone: bells ring for everybody, and would tell of others.
    """

    base_path: str
    cookie_name: str
    authenticate: Callable[[Hub, Request], Awaitable[VisitorT]]
    unauthenticated_page: Callable[[Request], Response]
    refresh_interval: timedelta

    def page_handler(
        self, hub: Hub, handler: Callable[[Hub, Request, VisitorT], Awaitable[Response]]
    ) -> RequestHandler:
        """A page to look at."""

        async def answer(request: Request) -> Response:
            try:
                visitor = await self.authenticate(hub, request)
            except Unauthenticated:
                return self.unauthenticated_page(request)
            return await handler(hub, request, visitor)

        return with_error_pages(answer, self.error_page)

    def action_handler(
        self, hub: Hub, handler: Callable[[Hub, Request, VisitorT, Form], Awaitable[Response]]
    ) -> RequestHandler:
        """Something that is done by a form."""

        async def answer(request: Request) -> Response:
            try:
                visitor = await self.authenticate(hub, request)
                given = await read_form(request)
                if not is_same_origin(request, hub) or not csrf_tokens_equal(
                    given.get("stamp", ""), visitor.csrf_token
                ):
                    return self.error_page(request, "stale form", 403)
                return set_flash_cookie(hub, await handler(hub, request, visitor, given))
            except Unauthenticated:  # before, or meanwhile
                return self.unauthenticated_page(request)

        return with_error_pages(answer, self.error_page)

    def public_handler(self, hub: Hub, handler: Callable[[Hub, Request], Awaitable[Response]]) -> RequestHandler:
        """A page for anybody; who is to be known after all is turned away there."""

        async def answer(request: Request) -> Response:
            try:
                return await handler(hub, request)
            except Unauthenticated:
                return self.unauthenticated_page(request)

        return with_error_pages(answer, self.error_page)

    def render_page(
        self, request: Request, template_name: str, *, status: int = 200, csrf_token: str = "", **context: Any
    ) -> HTMLResponse:
        answer = render_page(
            request, template_name, status=status, base_path=self.base_path, csrf_token=csrf_token, **context
        )
        # Without a referrer at all a browser does not say either that a form is from a page of ours.
        answer.headers["referrer-policy"] = "same-origin"
        return answer

    def error_page(self, request: Request, text_id: str, status: int, detail: str = "") -> HTMLResponse:
        """A page that only says something."""
        return self.render_page(request, "cookie_guard/error.html", status=status, text_id=text_id, detail=detail)

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
        """Ask before something is done that cannot be undone, as the console does: what, and to how many."""
        asked = confirm_context(request, ("stamp", visitor.csrf_token), text_id, count, fields, **values)
        return self.render_page(
            request,
            "confirm.html",
            layout="cookie_guard/base.html",
            csrf_token=visitor.csrf_token,
            return_url=self.base_path,
            **asked,
        )

    async def live_page(self, hub: Hub, request: Request, visitor: VisitorT) -> Response:
        """A stream of looks, for as long as its reader is let in."""

        async def let() -> bool:
            try:
                await self.authenticate(hub, request)
            except Unauthenticated:
                return False
            return True

        return refresh_stream(hub, let, visitor.csrf_token, max_interval=self.refresh_interval)

    async def not_found_page(self, request: Request) -> Response:
        return self.error_page(request, "no such page", 404)

    async def switch_language_action(self, hub: Hub, request: Request) -> Response:
        return (
            language_redirect(hub, request, self.base_path)
            if is_same_origin(request, hub)
            else self.error_page(request, "stale form", 403)
        )

    def sign_in_redirect(self, hub: Hub, cookie: str, lifetime: timedelta) -> Response:
        """Let somebody in: their browser keeps the cookie for these pages alone."""
        answer = RedirectResponse(self.base_path, 303)
        set_secure_cookie(
            hub, answer, self.cookie_name, cookie, max_age=int(lifetime.total_seconds()), path=self.base_path
        )
        return answer

    def delete_cookie(self, response: Response) -> Response:
        response.delete_cookie(self.cookie_name, path=self.base_path)
        return response


def csrf_token_for(cookie: str) -> str:
    """What the forms of one browser carry: made of its cookie, which no script and no other site can read."""
    return hashlib.sha256(f"form of {cookie}".encode()).hexdigest()


def csrf_tokens_equal(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())
